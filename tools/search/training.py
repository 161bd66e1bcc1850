"""Runs and judges the kinds of cases that train."""
import os
import shutil
import signal

import data
import one_rank
import optimizers
import runs
import torch_runs
from comparison import compare_runs
from program import Failure, check_end
from runs import words_of
from work import either


def train(work):
    case = work.case
    processes = case["layout"] if case["other"].get("processes") else None
    wanted, got = either(work.reference, lambda: work.train("parallel", work.layout_words(), processes))
    compare_runs(work, got, wanted, case["layout"], least_dtype(work))
    check_alone(work, got, wanted)


def least_dtype(work):
    """The least precise dtype of a case: that of its numbers or of the gradients that ranks send."""
    layouts = (work.case["layout"], work.case["other"].get("first", {}))
    return "bf16" if any("reduce-dtype" in layout for layout in layouts) else work.dtype


def check_alone(work, got, wanted):
    """Checks what no second run shows, because both would have the same fault."""
    for out in (got, wanted):
        optimizers.check_rates(work, out)
        optimizers.check_updates(work, out)
    one_rank.check_averages(work, wanted)
    if data.task_of(work.inputs.model) == "lm":
        one_rank.check_last_evaluation(work, wanted)
    torch_runs.check(work, wanted)


def resume(work):
    """Saves at step `at` on one layout, in the middle of a run or at its end, and resumes on another."""
    case = work.case
    other = case["other"]

    def both():
        if other.get("ends"):
            work.train("parallel", words_of(other["first"]), math_flags={**case["math"], "steps": other["at"]})
            return work.train("parallel", words_of(case["layout"]) + ["--resume"])
        out = work.train("parallel", words_of(other["first"]) + ["--save-every", str(other["at"])])
        with open(os.path.join(out, "latest"), "w", encoding="ascii") as file:
            file.write(f"step_{other['at']:08d}\n")
        shutil.move(os.path.join(out, "metrics.jsonl"), os.path.join(out, "first.jsonl"))
        shutil.copy(os.path.join(out, "first.jsonl"), os.path.join(out, "metrics.jsonl"))
        return work.train("parallel", words_of(case["layout"]) + ["--resume"])

    wanted, got = either(work.reference, both)
    compare_runs(work, got, wanted, {**case["layout"], "micro-batch-size": 1}, least_dtype(work))
    check_alone(work, got, wanted)


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
    compare_runs(work, got, wanted, {**layout, "micro-batch-size": 1}, least_dtype(work))
    check_alone(work, got, wanted)


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
