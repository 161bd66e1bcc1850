"""Runs and judges `cleave plan` and `cleave lesson`."""
import math
import os

import models
import runs
import tolerance
from program import Failure, Refused
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


def num_weights(model):
    return sum(math.prod(shape) for _, shape in models.SHAPES.get(model["family"], models.decoder_shapes)(model))


def flags_of(case, left_out=()):
    flags = {name: value for part in ("math", "layout") for name, value in case[part].items()
             if name in OF_PLAN and name not in left_out}
    return words_of(flags)


def plan(work):
    """A forecast never fails, and `plan` refuses a layout where `train` does. One rank holds each weight once."""
    case, other = work.case, work.case["other"]
    words, form = ["plan", "--model", work.inputs.model_path], other["form"]
    if form in ("ranks", "cluster"):
        more = ["--ranks", str(other["ranks"]), *(["--cluster", "h100-80gb", "--tokens", "1B"] if form == "cluster" else [])]
        words += flags_of(case, LAYOUT) + more
        return expect_sound(work.program.json(*words, "--json"), " ".join(words))
    words += flags_of(case)
    if form == "dry-run":
        ranks = runs.num_ranks(case["layout"])
        words += ["--ranks", str(ranks), "--dry-run", "--rank", str(other["ranks"] % ranks)]
        return expect_sound(work.program.json(*words, "--json"), " ".join(words))
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
        raise Failure("refusal", f"train refuses what plan forecasts: {error}") from None
    except Failure as failure:
        if failure.what != "exit 9":
            raise
    if refusal:
        raise Failure("refusal", f"only plan refuses: {refusal}")
    expect_sound(forecast, " ".join(words))
    ranks = forecast[0]["ranks"]
    if runs.num_ranks(case["layout"]) == 1 and "lora" not in case["math"]:
        bytes_each = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}[work.dtype]
        if ranks[0]["weights"] < bytes_each * num_weights(work.inputs.model):
            raise Failure("weights", f"one rank holds {ranks[0]['weights']} bytes of {num_weights(work.inputs.model)} weights")


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
