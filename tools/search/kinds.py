"""How a case of each kind is run and judged."""
import math
import os
import shutil

import beside_transformers
import confirm
import data
import extreme
import runs
import tolerance
from program import Failure, Refused, check_end
from runs import REFERENCE, Inputs, words_of

MAX_PEAK_BYTES = 3 << 30
EXTREME_CPU_S, EXTREME_LIMIT_S = 25, 150


class Work:
    """A case with its files and the program."""

    def __init__(self, case, program):
        self.case, self.program = case, program
        self.folder = program.folder
        self.inputs = Inputs(case, self.folder)
        self.dtype = case["math"].get("dtype", "fp32")

    def path(self, name):
        return os.path.join(self.folder, name)

    def train(self, out, flags, processes=None):
        words = runs.train_words(self.inputs, self.path(out), flags)
        if processes:
            words = runs.launched(words, self.program.path, processes)
        self.program.answer(*words)
        return self.path(out)

    def reference(self, out="reference", model=None):
        self.program.answer(*runs.train_words(self.inputs, self.path(out), REFERENCE, model))
        return self.path(out)


def either(first, second):
    """Results of both. Where the first refuses, the second must refuse too: what one rank cannot do no layout can."""
    try:
        a = first()
    except (Refused, Failure) as refusal:
        if isinstance(refusal, Failure) and refusal.what != "exit 9":
            raise
        try:
            second()
        except Refused:
            raise Refused(str(refusal)) from None
        except Failure as failure:
            if isinstance(refusal, Failure) and failure.what == refusal.what:
                raise Refused(f"both end with {failure.what}") from None
            raise
        raise Failure("refusal", f"only one rank refuses: {refusal}") from None
    return a, second()


def train(work):
    case = work.case
    processes = case["layout"] if case["other"].get("processes") else None
    wanted, got = either(work.reference, lambda: work.train("split", words_of(case["layout"]), processes))
    compare_runs(work, got, wanted, case["layout"])


def compare_runs(work, got, wanted, layout):
    """The metrics of each step, the moments and the weights after the last."""
    reference, split = runs.metrics_of(wanted), runs.metrics_of(got)
    parted = runs.first_skipped_alone(split, reference) if work.dtype == "fp16" else None
    if parted is not None:
        split, reference = split[:parted], reference[:parted]
    bounds = runs.bounds_of(work.inputs, work.dtype, layout)
    options = runs.options_of(work.case, reference)
    problems = list(runs.metric_differences(split, reference, bounds))
    tensors = None
    if not problems and parted is None:
        tensors = list(runs.tensor_differences(runs.tensors_of(got), runs.tensors_of(wanted), bounds, options))
    if problems or tensors:
        judge_run(work, (got, wanted), problems, tensors)


def judge_run(work, folders, problems, tensors):
    """Raises Failure unless rounding, amplified as measured, explains all differences."""
    got, wanted = folders
    runs_nudged = confirm.nudged(work.inputs, tolerance.UNIT[work.dtype], work.dtype,
                                 lambda path, n: work.reference(f"nudged-{n}", path))
    length = work.inputs.sum_length()
    for name, step, a, b in problems:
        responses = [value_at(folder, name, step, b) for folder in runs_nudged]
        off = abs(a - b) if None not in (a, b) else math.inf
        if not confirm.is_explained(off, responses, work.dtype, length):
            raise Failure(name, f"step {step}: {name} {a}, {b} on one rank (nudged weights move it by {responses})")
    if not tensors:
        return
    reference = runs.tensors_of(wanted)
    nudged_tensors = [runs.tensors_of(folder) for folder in runs_nudged]
    for name, off, bound in tensors:
        responses = [tolerance.distance(other[name], reference[name]) for other in nudged_tensors]
        if not confirm.is_explained(off, responses, work.dtype, length):
            kind = name.split(".")[1] if name.startswith("optimizer.") else "weights"
            raise Failure(kind, f"{name} is {off:.3g} off (bound {bound:.3g}; nudged weights move it by {responses})")


def value_at(folder, name, step, value):
    """How far the metric of a nudged run is from the reference's."""
    row = runs.metrics_of(folder)[step - 1]
    return abs(row[name] - value) if row.get(name) is not None and value is not None else math.nan


def resume(work):
    """One layout saves at step `at`, another continues from there."""
    case = work.case
    other = case["other"]

    def both():
        out = work.train("split", words_of(other["first"]) + ["--save-every", str(other["at"])])
        with open(os.path.join(out, "latest"), "w", encoding="ascii") as file:
            file.write(f"step_{other['at']:08d}\n")
        shutil.move(os.path.join(out, "metrics.jsonl"), os.path.join(out, "first.jsonl"))
        shutil.copy(os.path.join(out, "first.jsonl"), os.path.join(out, "metrics.jsonl"))
        return work.train("split", words_of(case["layout"]) + ["--resume"])

    wanted, got = either(work.reference, both)
    compare_runs(work, got, wanted, {**case["layout"], "micro-batch-size": 1})


def launch(work):
    """Threads and processes do the same, to the last bit."""
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


def generate(work):
    case = work.case
    prompts = case["other"]["prompts"]
    flags = words_of(case["math"])

    def words(asked, more, model=None):
        out = ["generate", "--model", model or work.inputs.model_path, "--json"]
        for prompt in asked:
            out += ["--prompt-ids", ",".join(map(str, prompt))]
        return out + flags + more

    def one_rank(model=None):
        groups = [[p] for p in prompts] if case["other"].get("apart") else [prompts]
        return [row for group in groups for row in work.program.json(*words(group, REFERENCE, model))]

    def split():
        more = words(prompts, words_of(case["layout"]))
        if case["other"].get("processes"):
            more = runs.launched(more, work.program.path, case["layout"])
        return work.program.json(*more)

    wanted, got = either(one_rank, split)
    check_generated(work, got)
    judge_generated(work, sequences_difference(work, got, wanted), wanted, one_rank, work.dtype)
    if beside_transformers.can_compare(work.inputs.model, work.dtype) and "do-sample" not in case["math"]:
        answers = beside_transformers.ids(work.inputs, work.dtype, prompts, case["math"])
        rows = [{"prompt_ids": prompt, "sequences": [{"ids": ids, "score": None} for ids in answer]}
                for prompt, answer in zip(prompts, answers)]
        judge_generated(work, sequences_difference(work, got, rows, "in transformers"), wanted, one_rank, "fp32")


def judge_generated(work, found, reference, one_rank, dtype):
    """Raises Failure unless the difference that was found, if any, is a tie: nudges move the reference of one rank at that
    place too."""
    if not found:
        return
    # Where two tokens are as likely as rounding can tell, changed weights choose the other one too. Rounding on the way is
    # more than one change a weight; tolerance.amplified says by how much.
    unit = tolerance.amplified(tolerance.UNIT[dtype], dtype, work.inputs.sum_length())
    for other in confirm.nudged(work.inputs, unit, dtype, lambda path, n: one_rank(path)):
        moved = sequences_difference(work, other, reference)
        if moved and moved[0] == found[0] and moved[1] <= found[1]:
            return
    raise Failure(found[2], f"{found[3]} (prompt {found[0]})")


def check_generated(work, rows):
    limit = work.case["math"]["max-new-tokens"]
    for row in rows:
        for sequence in row["sequences"]:
            ids = sequence["ids"]
            if len(ids) > limit or any(not 0 <= i < work.inputs.model["vocab"] for i in ids):
                raise Failure("ids", f"ids that cannot be: {ids}")


def sequences_difference(work, got, wanted, whose="on one rank"):
    """(prompt, place, kind, text) of the first difference; None where there is none."""
    if len(got) != len(wanted):
        return 0, 0, "rows", f"{len(got)} answers, {len(wanted)} {whose}"
    bounds = runs.bounds_of(work.inputs, work.dtype, {})
    for number, (a, b) in enumerate(zip(got, wanted)):
        if [a["prompt_ids"], len(a["sequences"])] != [b["prompt_ids"], len(b["sequences"])]:
            return number, 0, "rows", f"{len(a['sequences'])} sequences, {len(b['sequences'])} {whose}"
        for x, y in zip(a["sequences"], b["sequences"]):
            if x["ids"] != y["ids"]:
                place = next((i for i, pair in enumerate(zip(x["ids"], y["ids"])) if pair[0] != pair[1]),
                             min(len(x["ids"]), len(y["ids"])))
                return number, place, "ids", f"{x['ids']}, {y['ids']} {whose}"
            # Scores of every dtype are sums of fp32 log-probabilities.
            relative = max(bounds.number, len(y["ids"]) * tolerance.UNIT["fp32"])
            if y["score"] is not None and runs.far(x["score"], y["score"], relative * max(abs(y["score"] or 0), 1)):
                return number, len(y["ids"]), "score", f"score {x['score']}, {y['score']} on one rank"
    return None


def eval_words(work, more, model=None, plain=False):
    flags = [f"--{name}={value}" for name, value in work.case["math"].items() if name in ("dtype", "seq-len")]
    return ["eval", "--model", model or work.inputs.model_path, "--data", work.inputs.data_path, "--json", *flags,
            *work.inputs.tokenizer_words(), *more, *(REFERENCE if plain else [])]


def evaluate(work):
    case = work.case

    def one_rank(model=None):
        return work.program.json(*eval_words(work, ["--batch-size", "1"], model, plain=True))[0]

    def split():
        more = eval_words(work, words_of(case["layout"]))
        if case["other"].get("processes"):
            more = runs.launched(more, work.program.path, case["layout"])
        return work.program.json(*more)[0]

    wanted, got = either(one_rank, split)
    compare_loss(work, got, wanted, one_rank)
    if beside_transformers.can_compare(work.inputs.model, work.dtype):
        loss = beside_transformers.loss(work.inputs, work.dtype)
        if loss is not None:
            compare_loss(work, got, {"loss": loss, "reference": wanted["loss"]}, one_rank, "in transformers")


def compare_loss(work, got, wanted, run, whose="on one rank"):
    # transformers computes angles and norms in fp32 whatever the dtype.
    dtype = "fp32" if whose == "in transformers" else work.dtype
    bounds = runs.bounds_of(work.inputs, dtype, work.case["layout"])
    if not runs.far(got["loss"], wanted["loss"], bounds.loss(wanted["loss"] or 0)):
        return
    others = confirm.nudged(work.inputs, bounds.unit, work.dtype, lambda path, n: run(path)["loss"])
    responses = [abs(o - wanted.get("reference", wanted["loss"])) for o in others]
    if not confirm.is_explained(abs(got["loss"] - wanted["loss"]), responses, dtype, work.inputs.sum_length()):
        raise Failure("loss", f"loss {got['loss']}, {wanted['loss']} {whose} (nudged weights move it by {responses})")


def predict(work):
    case = work.case
    texts = [word for text in case["other"]["texts"] for word in ("--text", text)]
    shared = ["predict", "--model"], [*texts, "--json", *words_of(case["math"])]

    def one_rank(model=None):
        return work.program.json(*shared[0], model or work.inputs.model_path, *shared[1], "--batch-size", 1, *REFERENCE)

    wanted, got = either(one_rank, lambda: work.program.json(*shared[0], work.inputs.model_path, *shared[1],
                                                             *words_of(case["layout"])))
    bounds = runs.bounds_of(work.inputs, work.dtype, case["layout"])
    off = probability_distance(got, wanted)
    if off > bounds.number:
        responses = confirm.nudged(work.inputs, bounds.unit, work.dtype,
                                   lambda path, n: probability_distance(one_rank(path), wanted))
        if not confirm.is_explained(off, responses, work.dtype, work.inputs.sum_length()):
            raise Failure("probability", f"probabilities differ by {off:.3g} (nudged weights move them by {responses})")


def probability_distance(got, wanted):
    """The largest distance of two lists of answers. The n-th largest probability is compared with the n-th largest: names
    may change places where two are alike."""
    largest = 0.0
    if len(got) != len(wanted):
        raise Failure("rows", f"{len(got)} answers, {len(wanted)} on one rank")
    for a, b in zip(got, wanted):
        if a["text"] != b["text"] or a.keys() != b.keys():
            raise Failure("rows", f"answers to other texts: {a['text']}, {b['text']}")
        lists = [(a["labels"], b["labels"])] if "labels" in a else [(x["words"], y["words"])
                                                                     for x, y in zip(a["masks"], b["masks"], strict=True)]
        for x, y in lists:
            if len(x) != len(y):
                raise Failure("rows", f"{len(x)} words, {len(y)} on one rank")
            largest = max([largest, *(abs(p["probability"] - q["probability"]) for p, q in zip(x, y))])
            known = {p.get("id", p.get("label")): p["probability"] for p in y}
            largest = max([largest, *(abs(p["probability"] - known[p.get("id", p.get("label"))]) for p in x
                                      if p.get("id", p.get("label")) in known)])
    return largest


def unrefused(work, *words):
    """Runs what must not be refused."""
    try:
        return work.program.answer(*words)
    except Refused as refusal:
        raise Failure("refusal", f"{' '.join(map(str, words))}: {refusal}") from None


def convert(work):
    """A chain of forms ends with the tensors it began with, and a model in parts computes what the whole one does."""
    source = work.inputs.model_path
    for number, step in enumerate(work.case["other"]["chain"], 1):
        target = work.path(f"form-{number}")
        words = "convert", "--from", source, "--to", target, *words_of(step)
        # What the program wrote itself it must read.
        work.program.answer(*words) if number == 1 else unrefused(work, *words)
        source = target
    last = work.path("last")
    unrefused(work, "convert", "--from", source, "--to", last)
    ended = work.program.answer("diff", work.inputs.model_path, last, codes=(0, 1))
    if ended.code:
        raise Failure("tensors", f"the tensors are not those at the start: {ended.out[:300]}")
    if data.task_of(work.inputs.model) == "classify" and work.inputs.model["head"] == "trunk":
        return
    losses = [work.program.json(*eval_words(work, ["--seq-len", "8"], model))[0]["loss"]
              for model in (work.inputs.model_path, work.path("form-1"))]
    if losses[0] != losses[1] and "dtype" not in work.case["other"]["chain"][0]:
        raise Failure("loss", f"loss {losses[1]} after convert, {losses[0]} before")


def names(work):
    """Files with other names give what the usual ones give."""
    usual = Inputs({**work.case, "model": {**work.case["model"], "names": ""}}, work.path("usual"))
    if work.inputs.model["head"] == "trunk" and work.inputs.model["family"] == "bert":
        renamed = work.inputs
        work.inputs = usual
        wanted = work.reference()
        work.inputs = renamed
        got = work.train("split", words_of(work.case["layout"]))
        compare_runs(work, got, wanted, work.case["layout"])
        return
    wanted, got = either(lambda: work.program.json(*eval_words(work, [], usual.model_path, plain=True))[0],
                         lambda: work.program.json(*eval_words(work, words_of(work.case["layout"])))[0])
    compare_loss(work, got, wanted, lambda model: work.program.json(*eval_words(work, [], model, plain=True))[0])


def extreme_flags(work):
    """Whatever a flag's value is: an answer or a clear refusal, soon, and without taking the machine's memory."""
    case = work.case
    command = case["other"]["command"]
    known = extreme.numeric_flags(work.program.answer(command, "--help").out)
    words = [command, "--model", work.inputs.model_path]
    if command in ("train", "eval"):
        words += ["--data", work.inputs.data_path]
    usual = {"train": {"out": work.path("out"), "steps": 1, "seq-len": 4, "batch-size": 2}, "eval": {"seq-len": 4},
             "generate": {"prompt-ids": "1,2,3", "max-new-tokens": 4}, "predict": {"text": "a film"}, "plan": {}}[command]
    chosen = {}
    for at, value in case["other"]["flags"]:
        # A name is drawn by its place in the help; a replayed case may name it.
        name = at if isinstance(at, str) else known[int(at * len(known))]
        chosen[name] = value
    case["other"]["flags"] = [[name, value] for name, value in chosen.items()]
    flags = [f"--{name}={value}" for name, value in {**usual, **chosen}.items()]
    ended = work.program.run(*words, *flags, limit_s=EXTREME_LIMIT_S)
    if ended.peak_bytes > MAX_PEAK_BYTES:
        raise Failure("memory", f"{ended.peak_bytes >> 20} MiB: {ended.command()}")
    if ended.cpu_seconds > EXTREME_CPU_S:
        raise Failure("hang", f"{ended.cpu_seconds:.0f} s of processor time: {ended.command()}")
    if ended.code == 9 and len(ended.errors()) == 1 and not ended.timed_out:
        raise Refused(ended.errors()[0])  # an overflow is reported as such
    check_end(ended)


RUN = {"train": train, "preset": train, "big": train, "text": train, "resume": resume, "launch": launch, "generate": generate,
       "eval": evaluate, "predict": predict, "convert": convert, "names": names, "extreme": extreme_flags}


def run(case, program):
    """Raises Failure or Refused; returns where all is well."""
    RUN[case["kind"]](Work(case, program))
