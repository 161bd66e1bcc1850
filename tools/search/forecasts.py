"""Runs and judges `cleave plan` and `cleave lesson`."""
import math
import os
import re
import shlex
from collections import Counter

import models
import runs
import tolerance
from program import OVERFLOWED, Failure, Refused
from runs import words_of

# Flags of a training case that `plan` has too.
LAYOUT = {"tp", "dp", "pp", "ep", "sequence-parallel", "virtual-pipeline", "schedule-pp", "zero", "fsdp", "recompute",
          "reduce-dtype"}
OF_PLAN = LAYOUT | {"batch-size", "micro-batch-size", "seq-len", "dtype", "optimizer", "lora", "lora-alpha", "lora-targets",
                    "lora-dropout", "lora-base", "rslora", "dora"}


def numbers_in(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def expect_sound(answers, command):
    """Every number of a forecast is finite and not negative."""
    if not answers:
        raise Failure("output", f"{command} printed nothing")
    for number in numbers_in(answers):
        if not (math.isfinite(number) and number >= 0):
            raise Failure("number", f"{command} printed {number}")


def shapes_of(model):
    """The shapes of the model's tensors by name; None for a family whose files have names of their own."""
    if model["family"] == "imdb_bert":
        return None
    return dict(models.shapes_of(model))


# Tensors that every tp rank has whole: norms, biases of sums over ranks, and tables that are not of tokens.
WHOLE = re.compile(r"(layer_?norm|LayerNorm|\.norm|ln_[12f]|q_norm|k_norm)\.(weight|bias)$|(o_proj|down_proj|c_proj|output\.dense|out_lin|lin2)\.bias$"
                   r"|(wpe|(position|token_type)_embeddings|(mlp|moe)\.gate)\.weight$|(pooler|transform|lm_head)\.dense\.|vocab_transform\.|classifier\.|score\.")
KEYS_AND_VALUES = re.compile(r"self_attn\.(k|v|qkv)_(proj\.(weight|bias)|norm\.weight)$")


def copies_over_tp(model, name, tp):
    """The least and the largest number of copies of a tensor that the tp ranks hold together."""
    if KEYS_AND_VALUES.search(name) and model["kv_heads"] % tp and (model["family"] in models.OLMO or "norm" not in name):
        return 1, tp  # ranks share a key and value head
    is_vector_of_heads = model["family"] in models.OLMO and ("q_norm" in name or "k_norm" in name)
    whole = WHOLE.search(name) and not is_vector_of_heads
    return (tp, tp) if whole else (1, 1)


def expect_shares(model, layout, rows):
    """The ranks of a dry run hold each weight of the config as often as the layout says.

    `rows`: one of each rank. ZeRO-1 and FSDP keep one copy over dp; a rank has the experts of one of --ep parts.
    """
    dp, tp, ep = (layout.get(name, 1) for name in ("dp", "tp", "ep"))
    is_sharded, shapes = "zero" in layout or "fsdp" in layout, shapes_of(model)
    held, stages = Counter(), {}
    for row in rows:
        for parameter in row["parameters"]:
            held[parameter["name"]] += parameter["held"]
            stages.setdefault(parameter["name"], set()).add(row["pp"])
    if held.keys() != shapes.keys():
        raise Failure("weights", f"the ranks and the model do not have the same weights: {sorted(held.keys() ^ shapes.keys())}")
    for name, shape in shapes.items():
        # The first and the last stage have a tied matrix.
        factor = len(stages[name]) * (1 if is_sharded else dp // ep if ".experts." in name else dp)
        least, most = (factor * copies * math.prod(shape) for copies in copies_over_tp(model, name, tp))
        is_shared = model["tied"] and ("embed" in name or "wte" in name)
        if not least <= held[name] <= most or len(stages[name]) > 1 + is_shared:
            raise Failure("weights", f"the ranks hold {held[name]} numbers of {name} {shape} on stages {stages[name]}, "
                                     f"expected {least} to {most}")


# Bytes of a weight in the compute type, and of the optimizer's copy where it is another tensor.
COMPUTE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
LEAF_BYTES = {"fp64": 8, "fp32": 4, "bf16": 4, "fp16": 4}


def bytes_of_weights(dtype, layout, held, whole):
    """`held`: the elements that the optimizer steps on this rank; `whole`: those that a forward pass uses."""
    if "fsdp" in layout:
        return LEAF_BYTES[dtype] * held
    has_copy = "zero" in layout or dtype in ("bf16", "fp16")
    return COMPUTE_BYTES[dtype] * whole + has_copy * LEAF_BYTES[dtype] * held


def expect_bytes(dtype, layout, rows, forecast):
    """The bytes of every rank's weights follow from its elements; the forecast has those of the fullest tp rank of each stage,
    with the dp rank 0."""
    fullest = Counter()
    for row in rows:
        if row["dp"] == 0:
            fullest[row["pp"]] = max(fullest[row["pp"]], row["weights"])
        # ZeRO-1 divides what the ranks of one shard hold; experts of --ep are divided otherwise.
        same = [other for other in rows if (other["pp"], other["tp"]) == (row["pp"], row["tp"])]
        whole = sum(other["elements"] for other in same) if "zero" in layout else row["elements"]
        wanted = bytes_of_weights(dtype, layout, row["elements"], whole)
        if "ep" not in layout and row["weights"] != wanted:
            raise Failure("weights", f"rank {row['rank']} has {row['weights']} bytes of weights, expected {wanted}")
    stages = [rank["weights"] for rank in forecast[0]["ranks"]]
    if stages != [fullest[stage] for stage in sorted(fullest)]:
        raise Failure("weights", f"plan forecasts {stages} bytes of weights, dry runs have {dict(fullest)}")


def dry_run(work, words):
    """A dry run of every rank: their weights are those of the model, as the layout shares them out."""
    case = work.case
    ranks = runs.num_ranks(case["layout"])
    dry = [*words, "--ranks", str(ranks), "--dry-run", "--json", "--rank"]
    rows = [work.program.json(*dry, str(rank))[0] for rank in range(ranks)]
    expect_sound(rows, " ".join(dry))
    if "lora" in case["math"] or shapes_of(work.inputs.model) is None:
        return
    expect_shares(work.inputs.model, case["layout"], rows)
    expect_bytes(work.dtype, case["layout"], rows, work.program.json(*words, "--json"))


def flags_of(case, left_out=()):
    flags = {name: value for part in ("math", "layout") for name, value in case[part].items()
             if name in OF_PLAN and name not in left_out}
    return words_of(flags)


def flags_in(command):
    """The flags of a command line by name; True for one without a value."""
    flags, words = {}, shlex.split(command)
    for i, word in enumerate(words):
        if word.startswith("--"):
            has_value = i + 1 < len(words) and not words[i + 1].startswith("--")
            flags[word[2:]] = words[i + 1] if has_value else True
    return flags


# What `plan --cluster` is given and passes on to the command for training.
PASSED_ON = ("batch-size", "micro-batch-size", "seq-len", "dtype", "reduce-dtype", "optimizer")


def expect_command(given, ranks, command):
    """The training command has the flags that `plan --cluster` was given, and a layout of its ranks."""
    flags = flags_in(command)
    for name, value in given.items():
        if name in PASSED_ON and flags.get(name, "adamw" if name == "optimizer" else None) != str(value):
            raise Failure("command", f"plan was given --{name} {value}, the command is {command}")
    product = math.prod(int(flags[name]) for name in ("tp", "pp", "dp"))
    if product != ranks or flags.get("device") != "cuda":
        raise Failure("command", f"the command for {ranks} GPUs is {command}")


def cluster(work):
    """The best layouts of a cluster; the command for training them has what `plan` was given, and a rank of it exists."""
    case, ranks = work.case, work.case["other"]["ranks"]
    given = {**case["math"], **case["layout"]}
    model = ["plan", "--model", work.inputs.model_path]
    words = [*model, *flags_of(case, LAYOUT - {"reduce-dtype"}), "--ranks", str(ranks), "--cluster", "h100-80gb",
             "--tokens", "1B"]
    answers = work.program.json(*words, "--json")
    expect_sound(answers, " ".join(words))
    if "command" not in answers[0]:
        return
    expect_command(given, ranks, answers[0]["command"])
    flags = {name: value for name, value in flags_in(answers[0]["command"]).items() if name in OF_PLAN}
    dry = [*model, *words_of(flags), "--ranks", str(ranks), "--dry-run", "--rank", str(ranks - 1), "--json"]
    try:
        expect_sound(work.program.json(*dry), " ".join(dry))
    except Refused as error:
        raise Failure("refusal", f"a dry run refuses the best layout of --cluster: {error}") from None


def plan(work):
    """A forecast never fails, and `plan` refuses a layout where `train` does. A dry run has the model's weights."""
    case, other = work.case, work.case["other"]
    words, form = ["plan", "--model", work.inputs.model_path], other["form"]
    if form == "cluster":
        return cluster(work)
    if form == "ranks":
        words += flags_of(case, LAYOUT) + ["--ranks", str(other["ranks"])]
        return expect_sound(work.program.json(*words, "--json"), " ".join(words))
    words += flags_of(case)
    if form == "dry-run":
        return dry_run(work, words)
    forecast = refusal = None
    try:
        forecast = work.program.json(*words, "--json")
    except Refused as error:
        refusal = error
    try:
        work.train("trained", work.layout_words())
    except Refused as error:
        if forecast is None:
            raise
        if str(error) != OVERFLOWED:  # which is no refusal
            raise Failure("refusal", f"train refuses what plan forecasts: {error}") from None
    except Failure as failure:
        if failure.what != "exit 9":
            raise
    if refusal:
        raise Failure("refusal", f"only plan refuses: {refusal}")
    expect_sound(forecast, " ".join(words))


def lesson(work):
    """Both runs of a lesson train the same: only their layouts differ."""
    name, out = work.case["other"]["name"], work.path("lesson")
    answers = work.program.json("lesson", name, "--out", out, "--json")
    expect_sound(answers, f"lesson {name}")
    before, after = (runs.metrics_of(os.path.join(out, part)) for part in ("before", "run"))
    # 8 blocks of width 128 on 8 sequences of 128 tokens.
    bounds = tolerance.bounds("fp32", 8, 1024, parts=16)
    for found in runs.metric_differences(after, before, bounds):
        raise Failure(found[0], f"lesson {name}, step {found[1]}: {found[2]}, {found[3]} before")
    if not answers[0]["questions"]:
        raise Failure("output", f"lesson {name} has no questions")
