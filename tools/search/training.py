"""Runs and judges the kinds of cases that train."""
import math
import os
import shutil
import signal

import one_rank
import confirm
import data
import runs
import tolerance
from program import OVERFLOWED, Failure, Refused, check_end
from runs import words_of
from work import either


def train(work):
    case = work.case
    processes = case["layout"] if case["other"].get("processes") else None
    wanted, got = either(work.reference, lambda: work.train("parallel", work.layout_words(), processes))
    compare_runs(work, got, wanted, case["layout"])
    check_alone(work, wanted)


def check_alone(work, out):
    """Checks the run on one rank, which the other is compared with."""
    if one_rank.can_check(work):
        one_rank.check_averages(work, out)
    if data.task_of(work.inputs.model) == "lm":
        one_rank.check_last_evaluation(work, out)


def compare_runs(work, got, wanted, layout):
    """Compares the metrics of each step, and the moments and weights after the last step."""
    reference, parallel = runs.metrics_of(wanted), runs.metrics_of(got)
    parted = runs.first_skipped_alone(parallel, reference) if work.dtype == "fp16" else None
    if parted is not None:
        parallel, reference = parallel[:parted], reference[:parted]
    bounds = runs.bounds_of(work.inputs, work.dtype, layout)
    if "early-stop" in work.case["math"] and len(parallel) != len(reference):
        # Rounding may decide whether an evaluation is below the best. Until then the runs are the same.
        parted = min(len(parallel), len(reference))
        check_stop(reference[:parted], bounds)
        parallel, reference = parallel[:parted], reference[:parted]
    options = runs.options_of(work.case, reference)
    problems = list(runs.metric_differences(parallel, reference, bounds))
    tensors = None
    if not problems and parted is None:
        tensors = list(runs.tensor_differences(runs.tensors_of(got), runs.tensors_of(wanted), bounds, options))
    if problems or tensors:
        confirm.judged(lambda each: judge_run(work, (got, wanted), problems, tensors, each))


def check_stop(rows, bounds):
    """Raises Failure unless an evaluation is so near to the best before it that rounding may order them either way."""
    losses = [row["eval_loss"] for row in rows]
    nearest = min((abs(loss - min(losses[:i])) for i, loss in enumerate(losses) if i), default=math.inf)
    if nearest > 2 * len(rows) * bounds.loss(max(losses)):
        raise Failure("steps", f"one run stops early after {len(rows)} steps, the other does not")


def judge_run(work, folders, problems, tensors, each):
    """Raises Failure unless rounding, amplified as measured, explains all differences."""
    got, wanted = folders
    rows = runs.metrics_of(wanted)
    length = work.inputs.sum_length()
    size = each.size(tolerance.UNIT[work.dtype], work.dtype, length)
    runs_nudged = confirm.nudged(work, size, each.numbers, lambda path, n: nudged_run(work, path, n))
    for name, step, a, b in problems:
        responses = [response_at(runs.metrics_of(folder), rows, name, step) for folder in runs_nudged]
        off = abs(a - b) if None not in (a, b) else math.inf
        if not each.explains(off, responses, work.dtype, length):
            raise Failure(name, f"step {step}: {name} {a}, {b} on one rank (nudged weights change it by {responses})")
    if not tensors:
        return
    reference = runs.tensors_of(wanted)
    nudged_tensors = [runs.tensors_of(folder) if runs.is_saved(folder) else None for folder in runs_nudged]
    for name, off, bound in tensors:
        responses = [tolerance.distance(other[name], reference[name]) if other else math.nan for other in nudged_tensors]
        if not each.explains(off, responses, work.dtype, length):
            kind = name.split(".")[1] if name.startswith("optimizer.") else "weights"
            raise Failure(kind, f"{name} differs by {off:.3g} (bound {bound:.3g}; nudged weights change it by {responses})")


def nudged_run(work, model, number):
    """The folder of a run on one rank. One in fp16 whose steps all overflow has metrics, and no checkpoint."""
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


def resume(work):
    """Saves at step `at` on one layout and resumes on another."""
    case = work.case
    other = case["other"]

    def both():
        out = work.train("parallel", words_of(other["first"]) + ["--save-every", str(other["at"])])
        with open(os.path.join(out, "latest"), "w", encoding="ascii") as file:
            file.write(f"step_{other['at']:08d}\n")
        shutil.move(os.path.join(out, "metrics.jsonl"), os.path.join(out, "first.jsonl"))
        shutil.copy(os.path.join(out, "first.jsonl"), os.path.join(out, "metrics.jsonl"))
        return work.train("parallel", words_of(case["layout"]) + ["--resume"])

    wanted, got = either(work.reference, both)
    compare_runs(work, got, wanted, {**case["layout"], "micro-batch-size": 1})
    check_alone(work, wanted)


def tune(work):
    resume(work) if "at" in work.case["other"] else train(work)


def launch(work):
    """Threads and processes must be bit-identical."""
    case = work.case
    flags = words_of(case["layout"])
    threads, processes = either(lambda: work.train("threads", flags),
                                lambda: work.train("processes", flags, case["layout"]))
    for a, b in zip(runs.metrics_of(threads), runs.metrics_of(processes), strict=True):
        for name in ("loss", "grad_norm", "eval_loss"):
            if a.get(name) != b.get(name):
                raise Failure(name, f"step {a['step']}: {name} {a.get(name)} with threads, {b.get(name)} with processes")
    ended = work.program.answer("diff", threads, processes, codes=(0, 1))
    if ended.code:
        raise Failure("weights", f"threads and processes differ: {ended.out[:300]}")


def restart(work):
    """A run that is killed after some steps and resumes, on another layout or as `cleave launch` restarts it."""
    case, other = work.case, work.case["other"]

    def both():
        out = work.path("parallel")
        first = [*words_of(other["first"]), "--save-every", str(other["save-every"])]
        words = runs.train_words(work.inputs, out, first)
        killer = Killer(out, other["at"], other.get("rank"))
        if "rank" in other:
            words = ["launch", "--max-restarts", "3", *runs.launched(words, work.program.path, other["first"])[1:]]
        ended = work.program.run(*words, watch=killer)
        if "rank" in other or not killer.has_killed:
            check_end(ended)
            return out
        return work.train("parallel", words_of(case["layout"]) + ["--resume"])

    wanted, got = either(work.reference, both)
    layout = other["first"] if "rank" in other else case["layout"]
    compare_runs(work, got, wanted, {**layout, "micro-batch-size": 1})


class Killer:
    """Kills a program, or one of the ranks that it launched, when its run has made `at` steps."""

    def __init__(self, out, at, rank):
        self.metrics, self.at, self.rank, self.has_killed = os.path.join(out, "metrics.jsonl"), at, rank, False

    def __call__(self, process):
        """Called until the process has ended."""
        if self.has_killed or not os.path.exists(self.metrics):
            return
        with open(self.metrics, "rb") as file:
            if file.read().count(b"\n") < self.at:
                return
        if self.rank is None:
            os.killpg(process.pid, signal.SIGKILL)
            self.has_killed = True
            return
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
            ranks = [int(word) for word in file.read().split()]
        if ranks:
            os.kill(ranks[self.rank % len(ranks)], signal.SIGKILL)
            self.has_killed = True
