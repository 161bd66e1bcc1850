"""Compares two training runs: metrics of each step, moments and weights."""
import math
import shutil

import confirm
import runs
import tolerance
from program import OVERFLOWED, Failure, Refused


def compare_runs(work, got, wanted, layout, dtype=None, without=(), is_torch=False):
    """Compares the metrics of each step, and the moments and weights after the last step.

    `dtype`: in which the less precise side computes, by default the case's. `without`: beginnings of the names of tensors that
    only `wanted` has. `is_torch`: whether `got` is a run in torch.
    """
    dtype = dtype or work.dtype
    reference, parallel = runs.metrics_of(wanted), runs.metrics_of(got)
    parted = runs.first_skipped_alone(parallel, reference) if work.dtype == "fp16" else None
    if parted is not None:
        parallel, reference = parallel[:parted], reference[:parted]
    bounds = runs.bounds_of(work.inputs, dtype, layout)
    if "early-stop" in work.case["math"] and len(parallel) != len(reference):
        # Rounding may decide whether an evaluation is below the best. Until then the runs are the same.
        if not is_near_best(reference[:min(len(parallel), len(reference))], bounds):
            confirm.judged(lambda each: judge_stop(work, reference, each, dtype), confirm.rounds_of(dtype))
        parted = min(len(parallel), len(reference))
        parallel, reference = parallel[:parted], reference[:parted]
    options = runs.options_of(work.case, reference)
    problems = list(runs.metric_differences(parallel, reference, bounds))
    tensors = None
    if not problems and parted is None:
        known = {name: values for name, values in runs.tensors_of(wanted).items() if not name.startswith(without)}
        tensors = list(runs.tensor_differences(runs.tensors_of(got), known, bounds, options))
    if problems or tensors:
        confirm.judged(lambda each: judge_run(work, wanted, (problems, tensors), each, dtype, is_torch), confirm.rounds_of(dtype))


def is_near_best(rows, bounds):
    """Whether an evaluation is so near to the best before it that rounding may order them either way."""
    losses = [row["eval_loss"] for row in rows]
    nearest = min((abs(loss - min(losses[:i])) for i, loss in enumerate(losses) if i), default=math.inf)
    return nearest <= 2 * len(rows) * bounds.loss(max(losses))


def judge_stop(work, rows, each, dtype):
    """Raises Failure unless a nudged reference stops after another step than the reference, which has these rows."""
    size = each.size(tolerance.UNIT[dtype], dtype, work.inputs.sum_length())
    lengths = [len(runs.metrics_of(folder))
               for folder in confirm.nudged(work, size, each.numbers, lambda path, n: nudged_run(work, path, n))]
    if all(length == len(rows) for length in lengths):
        raise Failure("steps", f"one rank stops after {len(rows)} steps, the other run does not (nudged weights: {lengths} steps)")


def steps_to_compare(row, step, is_torch):
    """The steps whose responses bound a difference of this one. Where DPO's model is its own reference, both have the same bits in
    Cleave, so that no nudge changes the margin of 0. In torch, the two differ by rounding, as in Cleave after the step."""
    return (step, step + 1) if is_torch and row.get("reward_margin") == 0 else (step,)


def judge_run(work, wanted, differences, each, dtype, is_torch=False):
    """Raises Failure unless rounding, amplified as measured, explains all differences: those of metrics and of tensors."""
    problems, tensors = differences
    rows = runs.metrics_of(wanted)
    length = work.inputs.sum_length()
    size = each.size(tolerance.UNIT[dtype], dtype, length)
    runs_nudged = confirm.nudged(work, size, each.numbers, lambda path, n: nudged_run(work, path, n))
    for name, step, a, b in problems:
        responses = [response_at(runs.metrics_of(folder), rows, name, other) for folder in runs_nudged
                     for other in steps_to_compare(rows[step - 1], step, is_torch)]
        off = abs(a - b) if None not in (a, b) else math.inf
        # What may be 0 but for rounding, as a margin or a small loss, is not random because of that.
        value = max(abs(b or 0), 1) if name in ("loss", "eval_loss", "grad_norm") else math.inf
        if not each.explains(off, responses, dtype, length, value):
            raise Failure(name, f"step {step}: {name} {a}, {b} on one rank (nudged weights change it by {responses})")
        if off > value / 2:
            return  # rounding has made another step of this one, and later steps begin there
    if not tensors:
        return
    reference = runs.tensors_of(wanted)
    nudged_tensors = [runs.tensors_of(folder) if runs.is_saved(folder) else None for folder in runs_nudged]
    for name, off, bound in tensors:
        responses = [tolerance.distance(other[name], reference[name]) if other else math.nan for other in nudged_tensors]
        if not each.explains(off, responses, dtype, length):
            kind = name.split(".")[1] if name.startswith("optimizer.") else "weights"
            raise Failure(kind, f"{name} differs by {off:.3g} (bound {bound:.3g}; nudged weights change it by {responses})")


def nudged_run(work, model, number):
    """The folder of a run on one rank. One in fp16 whose steps all overflow has metrics, and no checkpoint."""
    shutil.rmtree(work.path(f"nudged-{number}"), ignore_errors=True)  # of another comparison
    try:
        return work.reference(f"nudged-{number}", model)
    except Refused as error:
        if str(error) != OVERFLOWED:
            raise
        return work.path(f"nudged-{number}")


def response_at(rows, reference, name, step):
    """The difference of a metric between a nudged run and the reference. NaN if one of them has no number, or if they skipped
    different steps before: then their weights are different."""
    skipped = [[row["grad_norm"] is None for row in each[:step - 1]] for each in (rows, reference)]
    if len(rows) < step or skipped[0] != skipped[1]:
        return math.nan
    a, b = rows[step - 1].get(name), reference[step - 1].get(name)
    return abs(a - b) if a is not None and b is not None else math.nan
