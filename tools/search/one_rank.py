"""Checks a run on one rank by other ways to compute its results: averaged weights from the weights of all steps, and the last
evaluation by `cleave eval`."""
import os

import confirm
import data
import models
import runs
import tolerance
from optimizers import EXACT
from program import Failure
from runs import REFERENCE



def check_averages(work, out):
    """average * decay + weight * (1 - decay) after each update, from the weights after the first update on."""
    if "ema" not in work.case["math"] or work.dtype not in EXACT:
        return
    decay, average, unit = float(work.case["math"]["ema"]), {}, tolerance.UNIT[work.dtype]
    steps = sorted(name for name in os.listdir(out) if name.startswith("step_"))
    updates, rows = 0, runs.metrics_of(out)
    for number, step in enumerate(steps, 1):
        updates += runs.has_update(rows[number - 1])
        kept = decay if runs.has_update(rows[number - 1]) else 1.0
        found = runs.tensors_in(os.path.join(out, step))
        for name, stored in found.items():
            if not name.startswith("optimizer.ema."):
                continue
            weights = found[name.removeprefix("optimizer.ema.")]
            before = average[name] if updates > 1 else weights
            average[name] = [a * kept + w * (1 - kept) for a, w in zip(before, weights)]
            # Each step rounds two products and a sum.
            bound = 4 * number * unit * max(map(abs, weights), default=0) + 1e-30
            off = tolerance.farthest(stored, average[name])
            if len(stored) != len(weights) or not off <= bound:
                raise Failure("average", f"step {number}: {name} is off by {off:.3g} (bound {bound:.3g})")
    if not average:
        raise Failure("average", f"no checkpoint of {out} has averages")


def evaluated_rows(work):
    """The file whose `cleave eval` gives the run's loss on its evaluation data; None if there is none."""
    form, flags = work.inputs.data["form"], work.case["math"]
    if form in ("text", "text rows") and "packing" in flags:
        path = work.path("rows.jsonl")
        data.write_rows_of_documents(path, work.inputs.eval_path, form, flags["seq-len"])
        return path
    return work.inputs.eval_path if form in ("ids", "chats", "pairs") else None


def check_last_evaluation(work, out):
    """The loss that a run printed for its evaluation data is that of the model that it saved, of one sequence at a time."""
    case, flags = work.case, work.case["math"]
    last = runs.metrics_of(out)[-1]
    if last.get("eval_loss") is None or work.dtype not in EXACT or "lora-base" in flags or "train-on" in flags:
        return
    path = evaluated_rows(work)
    if path is None:
        return
    saved = runs.checkpoint_of(out)
    if "ema" in flags or "lora" in flags:
        final = work.path("final")
        work.program.answer("convert", "--from", saved, "--to", final, *(["--ema"] if "ema" in flags else []))
        saved = final
    more = []
    if "packing" not in flags or work.inputs.data["form"] not in ("text", "text rows"):
        more = ["--seq-len", str(flags["seq-len"])]
    if flags.get("task") == "dpo":
        more += ["--task", "dpo", "--reference", work.inputs.model_path, "--dpo-beta", str(flags.get("dpo-beta", 0.1))]

    def loss(model):
        return work.program.json("eval", "--model", model, "--data", path, "--json", "--dtype", work.dtype, "--batch-size", "1",
                                 *more, *REFERENCE)[0]["loss"]

    got, wanted = last["eval_loss"], loss(saved)
    dtypes = [work.dtype]
    if "lora" in flags:  # `convert` rounds merged weights to the file's dtype
        dtypes.append(work.inputs.model["file_dtype"])
    dtype = max(dtypes, key=tolerance.UNIT.get)
    bounds = runs.bounds_of(work.inputs, dtype, {})
    if not runs.far(got, wanted, bounds.loss(wanted)):
        return
    if not os.path.exists(os.path.join(saved, "model.safetensors")):
        raise Failure("evaluation", f"{saved} has no model")

    def judge(each):
        responses, length = [], work.inputs.sum_length()
        size = max(each.size(bounds.unit, dtype, length), 2.0**-52)
        for number in each.numbers:
            nudged = models.write_nudged(work.path(f"final-{number}"), saved, number, size, work.dtype)
            responses.append(abs(loss(nudged) - wanted))
        if not each.explains(abs(got - wanted), responses, dtype, length):
            raise Failure("evaluation", f"the run's eval_loss is {got}, cleave eval of its model gives {wanted} "
                                        f"(nudged weights change it by {responses})")

    confirm.judged(judge, confirm.rounds_of(dtype))
