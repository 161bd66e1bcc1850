"""Starts training runs and compares two of them."""
import json
import math
import os

import adapters
import data
import models
import tensor_file
import tolerance
from program import REFERENCE, Failure


def words_of(flags):
    """Command-line arguments for the flags of a case."""
    words = []
    for name, value in flags.items():
        for each in value if isinstance(value, list) else [value]:
            words += [f"--{name}"] if each is True else [f"--{name}={each}"]
    return words


def num_ranks(layout):
    """In training, data-parallel ranks share out the experts; `generate` and `eval` have ranks for them."""
    return layout.get("tp", 1) * layout.get("pp", 1) * layout.get("dp", layout.get("ep", 1))


class Inputs:
    """The files of a case, written once."""

    def __init__(self, case, folder):
        self.case, self.folder = case, folder
        self.model = models.full(case["model"])
        self.data = data.full(case["data"])
        self.model_path = models.write(os.path.join(folder, "model"), case["model"])
        self.base_path, self.adapter_path = self.model_path, None
        if case["other"].get("adapter"):
            # The model of the case is the merged one; the program gets its parts. A run in fp64 merges in fp64.
            dtype = "fp64" if case.get("math", {}).get("dtype") == "fp64" else "fp32"
            self.adapter_path, self.model_path = adapters.write(os.path.join(folder, "adapter"), case["other"]["adapter"],
                                                                self.base_path, self.model["family"] == "gpt2", dtype)
        self._data_path = self._eval_path = None

    @property
    def data_path(self):
        if self._data_path is None:
            self._data_path = data.write(self.folder, self.data, self.model)
        return self._data_path

    def data_words(self):
        """The value of --data: the file, or two files with weights."""
        weights = self.case["other"].get("weights")
        if not weights:
            return [self.data_path]
        second = data.write(self.folder, {**self.data, "rows": self.data["rows"] // 2 + 1}, self.model, "second")
        return [f"{path}:{weight}" for path, weight in zip((self.data_path, second), weights)]

    @property
    def eval_path(self):
        if self._eval_path is None:
            self._eval_path = data.write(self.folder, {**self.data, "rows": 3, "blank_rows": 0}, self.model, "eval")
        return self._eval_path

    def nudged(self, number, size, dtype, initial):
        """The model with every weight changed by the relative `size`.

        The file's dtype is the more precise one of the model's and `dtype`, in which the program computes: a less precise
        file would round the changes away. `initial()` is a checkpoint in fp32 of the weights that the program starts with if
        the case has only a config or a preset.
        """
        path, size = os.path.join(self.folder, f"model-{number}"), max(size, 2.0**-52)
        if self.model_path != self.base_path:  # a merged model, or one that was a GGUF file
            return models.write_nudged(path, self.model_path, number, size, "fp64" if dtype == "fp64" else "fp32")
        if self.model["source"] != "folder":
            return models.write_nudged(path, initial(), number, size, "fp64" if dtype == "fp64" else "fp32")
        computed = dtype if dtype in tensor_file.NAMES else "fp32"  # quantised weights come from those of the file
        finer = min(computed, self.model["file_dtype"], key=tolerance.UNIT.get)
        return models.write(path, {**self.case["model"], "nudge": number, "nudge_size": size, "nudge_dtype": finer})

    @property
    def reference_path(self):
        """The model with which `eval --task dpo` compares: one with other weights, or an adapter's base model."""
        if not self.case["other"].get("reference"):
            return self.base_path
        path = os.path.join(self.folder, "reference-model")
        if not os.path.exists(path):
            models.write(path, {**self.case["model"], "seed": self.model["seed"] + 1})
        return path

    def tokenizer_words(self):
        """Flags that make folders without a tokenizer read text as bytes."""
        return ["--tokenizer", "bytes"] if self.model["tokenizer"] == "bytes" and self.model["source"] == "folder" else []

    def sum_length(self):
        m = self.model
        longest = max(m["hidden"], m["inter"], self.data["longest"] * self.case["math"].get("batch-size", 1))
        return max(longest, m["vocab"] if m["source"] == "folder" else 257)


def train_words(inputs, out, flags, model=None, math_flags=None):
    """`math_flags`: others than the case's."""
    case = inputs.case
    words = ["train", "--model", model or inputs.model_path, "--data", *inputs.data_words(), "--out", out]
    if "eval-every" in case["math"]:
        words += ["--eval-data", inputs.eval_path]
    if inputs.model["head"] == "trunk" and inputs.model["family"] in models.ENCODERS:
        words += ["--task", "classify"]
    return words + inputs.tokenizer_words() + words_of(math_flags or case["math"]) + flags


def launched(words, path, layout):
    """The command that runs the same with processes."""
    return ["launch", "-n", str(num_ranks(layout)), "--", path, *words]


def metrics_of(out):
    with open(os.path.join(out, "metrics.jsonl"), encoding="ascii") as file:
        return [json.loads(line) for line in file]


def has_update(row):
    """Whether weights changed in the step of these metrics, in a dtype other than fp16: a batch without labels changes none."""
    return row["grad_norm"] is not None


def checkpoint_of(out):
    with open(os.path.join(out, "latest"), encoding="ascii") as file:
        return os.path.join(out, file.read().strip())


def is_saved(out):
    return os.path.exists(os.path.join(out, "latest"))


def tensors_of(out):
    """Weights and optimizer state of a run's newest checkpoint."""
    return tensors_in(checkpoint_of(out))


def weights_in(folder):
    """The weights of a checkpoint or of its adapter: name to (shape, values). Without the prefix that PEFT writes, which the
    optimizer's names do not have."""
    path = os.path.join(folder, "adapter_model.safetensors")
    if not os.path.exists(path):
        path = os.path.join(folder, "model.safetensors")
    return {name.removeprefix("base_model.model."): entry for name, entry in tensor_file.read(path).items()}


def tensors_in(folder):
    """Weights and optimizer state (under `optimizer.`) of a checkpoint."""
    tensors = {name: values for name, (_, values) in weights_in(folder).items()}
    path = os.path.join(folder, "optimizer.safetensors")
    if os.path.exists(path):
        for name, (_, values) in tensor_file.read(path).items():
            tensors[f"optimizer.{name}"] = values
    return tensors


def bounds_of(inputs, dtype, layout):
    math_flags = inputs.case["math"]
    batch = math_flags.get("batch-size", 8)
    micro = layout.get("micro-batch-size", batch)
    parts = layout.get("tp", 1) + layout.get("dp", 1) * -(-batch // max(micro, 1)) + (4 if layout.get("pp", 1) > 1 else 0)
    task = data.task_of(inputs.model)
    labels = batch if task in data.LABELS_SEQUENCES else batch * max(inputs.data["shortest"] - 1, 1) * 0.3
    if inputs.data["form"] == "pairs":
        labels = 1  # the loss is of sums over tokens
    squares = inputs.model["hidden"] * max(inputs.model["vocab"], inputs.model["inter"])
    return tolerance.bounds(dtype, inputs.model["layers"], inputs.sum_length(), parts, labels, squares)


def far(a, b, bound):
    """Whether two metrics differ by more than the bound. None and NaN equal only each other."""
    if a is None or b is None or math.isnan(a) or math.isnan(b):
        return (a is None or math.isnan(a)) != (b is None or math.isnan(b))
    return abs(a - b) > bound


def first_skipped_alone(got, wanted):
    """The first step that only one side skipped because its scaled gradients overflow fp16. Near the limit rounding decides,
    and after that step the runs differ."""
    for place, (a, b) in enumerate(zip(got, wanted)):
        if (a["grad_norm"] is None) != (b["grad_norm"] is None):
            return place
    return None


def metric_differences(got, wanted, bounds):
    """Yields (name, step, distance, bound) of every metric beyond its bound."""
    if len(got) != len(wanted):
        raise Failure("steps", f"{len(got)} steps, {len(wanted)} in the reference")
    for a, b in zip(got, wanted):
        step = b["step"]
        for name in ("tokens", "step"):
            if a[name] != b[name]:
                raise Failure(name, f"step {step}: {name} {a[name]}, {b[name]} in the reference")
        if far(a["lr"], b["lr"], 1e-12 * abs(b["lr"] or 0)):
            raise Failure("lr", f"step {step}: lr {a['lr']}, {b['lr']} in the reference")
        for name in ("loss", "eval_loss", "aux_loss", "reward_margin"):
            if (name in a) != (name in b):
                raise Failure(name, f"step {step}: {name} only on one side")
            if name in a and far(a[name], b[name], step * bounds.loss(b[name] or 0)):
                yield name, step, a[name], b[name]
        if far(a["grad_norm"], b["grad_norm"], step * bounds.norm * (b["grad_norm"] or 0)):
            yield "grad_norm", step, a["grad_norm"], b["grad_norm"]


def tensor_differences(got, wanted, bounds, options):
    """Yields (name, distance, bound) of every tensor that differs by more than its bound.

    Adam's update does not depend on the gradient's size: if a gradient is only rounding error, its sign is random, and a weight
    may differ by two full steps. Wrong gradients show in the moments.
    """
    steps, lr = options["steps"], options.get("lr", 3e-4)
    if set(got) != set(wanted):
        raise Failure("tensors", f"only on one side: {sorted(set(got) ^ set(wanted))[:4]}")
    total = tolerance.norm2([tolerance.norm2(v) for k, v in wanted.items() if k.startswith("optimizer.exp_avg.")])
    norm = options["norm"]

    def weight_bound(values):
        most = 2 * lr * steps * tolerance.largest_update(options)
        return (most + 2 * steps * bounds.unit * max(map(abs, values), default=0)) * len(values)**0.5

    def decay_bound(name):
        """What weights that differ within their bound add to a gradient that contains the decay, as Adam's does (not AdamW's)."""
        return options["decay"] * weight_bound(wanted[name.split(".", 2)[2]]) if options["optimizer"] == "adam" else 0.0

    for name, values in wanted.items():
        other, size = got[name], tolerance.norm2(values)
        if len(other) != len(values):
            raise Failure("shape", f"{name} has {len(other)} values, {len(values)} in the reference")
        if name.startswith("optimizer.num_steps"):
            bound = 0.0
        elif name.startswith("optimizer.exp_avg."):
            bound = steps * bounds.gradient * (size + total) + decay_bound(name)
        elif name.startswith("optimizer.exp_avg_sq."):
            # (g + e)^2 - g^2 = 2 g e + e^2; a norm of squares is at most the square of the norm.
            error = steps * bounds.gradient * (size**0.5 + total) + decay_bound(name)
            bound = 2 * error * (total + size**0.5) + error**2
        elif options["optimizer"] == "sgd":
            bound = steps * (steps * bounds.gradient * lr * norm + 2 * bounds.unit * size)
        else:
            bound = weight_bound(values)
        off = tolerance.distance(other, values)
        if not off <= bound and not (math.isnan(off) and math.isnan(size)):
            yield name, off, bound


def options_of(case, reference_metrics):
    flags = case["math"]
    norms = [row["grad_norm"] for row in reference_metrics if row["grad_norm"] is not None]
    betas = tuple(float(b) for b in str(flags.get("adam-betas", "0.9,0.95")).split(","))
    clip = float(flags.get("clip", 1.0))
    largest = max(norms, default=0.0)
    return {"steps": len(reference_metrics), "lr": float(flags.get("lr", 3e-4)), "betas": betas,
            "optimizer": flags.get("optimizer", "adamw"), "norm": min(largest, clip) if clip > 0 else largest,
            "decay": float(flags.get("weight-decay", 0.1))}
