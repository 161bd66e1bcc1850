"""Runs and judges the cases of each kind."""
import collections
import json
import math
import os

import transformers_oracle
import confirm
import data
import extreme
import forecasts
import models
import quantized
import runs
import tensor_file
import tolerance
import training
from program import Failure, Refused
from runs import REFERENCE, Inputs, words_of
from work import Work, either

def parts_of(work, model=None):
    """The model of the parallel side: a folder, or a base model and its adapter."""
    if not work.inputs.adapter_path:
        return ["--model", model or work.inputs.model_path]
    return ["--model", work.inputs.base_path, "--adapter", work.inputs.adapter_path]


def ids_words(prompts):
    return [word for prompt in prompts for word in ("--prompt-ids", ",".join(map(str, prompt)))]


def prompt_words(work):
    """The prompts as the parallel side gets them: ids or text, as arguments or in a file."""
    other = work.case["other"]
    texts = ["".join(map(chr, prompt)) for prompt in other["prompts"]] if other.get("as_text") else []
    if not other.get("prompt_file"):
        return [f"--prompt={text}" for text in texts] or ids_words(other["prompts"])
    if texts:
        return ["--prompt-file", work.write_text("prompts.txt", "".join(text + "\n" for text in texts))]
    return ["--prompt-file", work.write_lines("prompts.jsonl", [{"input_ids": prompt} for prompt in other["prompts"]])]


def generate(work, parallel_model=None):
    """`parallel_model`: another form of the model for the parallel side."""
    case = work.case
    prompts = case["other"]["prompts"]
    flags = words_of(case["math"])

    def words(asked, more):
        return ["generate", "--json", *asked, *flags, *more, *work.inputs.tokenizer_words()]

    def one_rank(model=None):
        # One prompt after the other, so that none is padded; apart, each in a run of its own.
        groups = [[p] for p in prompts] if case["other"].get("apart") else [prompts]
        more = ["--model", model or work.inputs.model_path, "--batch-size", "1", *REFERENCE]
        return [row for group in groups for row in work.program.json(*words(ids_words(group), more))]

    def parallel():
        more = parts_of(work, parallel_model) + work.layout_words()
        if case["other"].get("record"):
            more += ["--record-step", case["other"]["record"], "--out", work.path("recorded")]
        more = words(prompt_words(work), more)
        if case["other"].get("processes"):
            more = runs.launched(more, work.program.path, case["layout"])
        return work.program.json(*more)

    wanted, got = either(one_rank, parallel)
    check_generated(work, got)
    judge_generated(work, sequences_difference(work, got, wanted), wanted, one_rank, work.dtype)
    # transformers draws other random numbers; it ends at stop texts only with its own tokenizer; only its Phi-3 computes the keys
    # of earlier tokens again when a text passes the length of the short factors.
    model = work.inputs.model
    is_same = case["math"].keys().isdisjoint(("do-sample", "stop")) and (model["short_length"] == 1 or model["family"] == "phi3")
    if is_same and transformers_oracle.can_compare(model, work.dtype):
        answers = transformers_oracle.ids(work.inputs, work.dtype, prompts, case["math"])
        rows = [{"prompt_ids": prompt, "sequences": [{"ids": ids, "score": None} for ids in answer]}
                for prompt, answer in zip(prompts, answers)]
        leave_out_unended(got, rows)
        judge_generated(work, sequences_difference(work, got, rows, "in transformers"), wanted, one_rank, "fp32")


UNENDED = -1e9


def leave_out_unended(got, rows):
    """Copies the ids of `got` into `rows` for sequences in which every token was forbidden before the end.

    transformers adds -1e9 to the scores of such beams in fp32, which makes them all equal, so its choice is random.
    """
    for mine, theirs in zip(got, rows):
        for x, y in zip(mine["sequences"], theirs["sequences"]):
            if x["score"] == UNENDED:
                y["ids"] = x["ids"]


def judge_generated(work, found, reference, one_rank, dtype):
    """Raises Failure unless the difference, if any, is a tie: nudges change the reference of one rank at that place too."""
    if not found:
        return
    if found.kind == "score" and dtype == "fp64":
        dtype = "fp32"  # scores are computed from logits in fp32, whatever the model's dtype
    # If rounding decides between two tokens, changed weights sometimes choose the other one. Rounding during the computation
    # has more effect than one change per weight, by the factor of tolerance.amplified.
    unit = tolerance.amplified(tolerance.UNIT[dtype], dtype, work.inputs.sum_length())

    def judge(each):
        answers = [rows[found.prompt] for rows in confirm.nudged(work, unit, each.numbers, lambda path, n: one_rank(path))]
        wanted = reference[found.prompt]
        if found.kind == "ids" and any(
                first_difference(ids_of(answer, found.sequence), ids_of(wanted, found.sequence)) <= found.place
                for answer in answers):
            return
        # The nudges contain the amplification, so a score may differ by as much as the largest of their differences.
        if found.kind == "score" and found.distance <= max((largest_score_difference(a, wanted) for a in answers), default=0):
            return
        raise Failure(found.kind, f"{found.text} (prompt {found.prompt})")

    confirm.judged(judge)


def ids_of(answer, sequence):
    return answer["sequences"][sequence]["ids"]


def first_difference(a, b):
    """The index of the first element in which two lists differ; infinite for equal lists."""
    if a == b:
        return math.inf
    return next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), min(len(a), len(b)))


def largest_score_difference(a, b):
    """Of two answers to one prompt, over the sequences whose ids are equal."""
    pairs = zip(a["sequences"], b["sequences"])
    return max((abs(x["score"] - y["score"]) for x, y in pairs if x["ids"] == y["ids"]), default=0)


def check_generated(work, rows):
    limit = work.case["math"]["max-new-tokens"]
    wanted = work.case["math"].get("num-return-sequences", 1)
    for row in rows:
        if len(row["sequences"]) != wanted:
            raise Failure("sequences", f"{len(row['sequences'])} sequences instead of {wanted}: {row}")
        for sequence in row["sequences"]:
            ids = sequence["ids"]
            if len(ids) > limit or any(not 0 <= i < work.inputs.model["vocab"] for i in ids):
                raise Failure("ids", f"invalid ids: {ids}")


# Where answers differ first: the prompt, its sequence and the position, and by how much scores differ.
Difference = collections.namedtuple("Difference", "prompt sequence place kind text distance")


def sequences_difference(work, got, wanted, whose="on one rank"):
    """The first Difference, or None."""
    if len(got) != len(wanted):
        return Difference(0, 0, 0, "rows", f"{len(got)} answers, {len(wanted)} {whose}", 0)
    bounds = runs.bounds_of(work.inputs, work.dtype, {})
    for number, (a, b) in enumerate(zip(got, wanted)):
        if [a["prompt_ids"], len(a["sequences"])] != [b["prompt_ids"], len(b["sequences"])]:
            return Difference(number, 0, 0, "rows", f"{len(a['sequences'])} sequences, {len(b['sequences'])} {whose}", 0)
        for i, (x, y) in enumerate(zip(a["sequences"], b["sequences"])):
            if x["ids"] != y["ids"]:
                return Difference(number, i, first_difference(x["ids"], y["ids"]), "ids", f"{x['ids']}, {y['ids']} {whose}", 0)
            # Scores of every dtype are sums of fp32 log-probabilities. Each token's logit, its log-probability and the
            # sum are rounded on both sides.
            relative = max(bounds.number, 2 * (2 * len(y["ids"]) + 1) * tolerance.UNIT["fp32"])
            if y["score"] is not None and runs.far(x["score"], y["score"], relative * max(abs(y["score"] or 0), 1)):
                text = f"score {x['score']}, {y['score']} on one rank"
                return Difference(number, i, len(y["ids"]), "score", text, abs(x["score"] - y["score"]))
    return None


def eval_words(work, more, model=None, plain=False, leave_out=""):
    """`model`: the value of --model, or a list of arguments that name the model."""
    flags = [f"--{name}={value}" for name, value in work.case["math"].items()
             if name in ("dtype", "kv-cache-dtype", "seq-len", "task", "dpo-beta") and name != leave_out]
    named = model if isinstance(model, list) else ["--model", model or work.inputs.model_path]
    if work.case["math"].get("task") == "dpo" and (work.case["other"].get("reference") or not isinstance(model, list)):
        flags += ["--reference", work.inputs.reference_path]
    return ["eval", *named, "--data", work.inputs.data_path, "--json", *flags,
            *work.inputs.tokenizer_words(), *more, *(REFERENCE if plain else [])]


def evaluate(work):
    case = work.case

    def one_rank(model=None):
        return work.program.json(*eval_words(work, ["--batch-size", "1"], model, plain=True))[0]

    def parallel():
        more = eval_words(work, work.layout_words(), parts_of(work))
        if case["other"].get("processes"):
            more = runs.launched(more, work.program.path, case["layout"])
        return work.program.json(*more)[0]

    wanted, got = either(one_rank, parallel)
    compare_loss(work, got, wanted, one_rank)
    if case["math"].get("task") == "dpo":
        beta = float(case["math"].get("dpo-beta", 0.1))
        compare_loss(work, *({"loss": side["reward_margin"] / beta} for side in (got, wanted)),
                     lambda model: {"loss": one_rank(model)["reward_margin"] / beta}, "on one rank (reward margin / beta)")
    if transformers_oracle.can_compare(work.inputs.model, work.dtype):
        loss = transformers_oracle.loss(work.inputs, work.dtype)
        if loss is not None:
            compare_loss(work, got, {"loss": loss, "reference": wanted["loss"]}, one_rank, "in transformers")


def compare_loss(work, got, wanted, run, whose="on one rank"):
    # transformers computes angles and norms in fp32 whatever the dtype.
    dtype = "fp32" if whose == "in transformers" else work.dtype
    bounds = runs.bounds_of(work.inputs, dtype, work.case["layout"])
    if not runs.far(got["loss"], wanted["loss"], bounds.loss(wanted["loss"] or 0)):
        return

    def judge(each):
        size = each.size(bounds.unit, dtype, work.inputs.sum_length())
        others = confirm.nudged(work, size, each.numbers, lambda path, n: run(path)["loss"])
        responses = [abs(o - wanted.get("reference", wanted["loss"])) for o in others]
        if not each.explains(abs(got["loss"] - wanted["loss"]), responses, dtype, work.inputs.sum_length()):
            raise Failure("loss", f"loss {got['loss']}, {wanted['loss']} {whose} (nudged weights change it by {responses})")

    confirm.judged(judge, confirm.rounds_of(dtype))


def predict(work):
    case = work.case
    texts = [word for text in case["other"]["texts"] for word in ("--text", text)]
    shared = ["predict", "--model"], [*texts, "--json", *words_of(case["math"])]

    def one_rank(model=None):
        return work.program.json(*shared[0], model or work.inputs.model_path, *shared[1], "--batch-size", 1, *REFERENCE)

    def parallel():
        asked = texts
        if case["other"].get("text_file"):
            asked = ["--text-file", work.write_lines("texts.jsonl", [{"text": text} for text in case["other"]["texts"]])]
        return work.program.json(*shared[0], work.inputs.model_path, *asked, "--json", *words_of(case["math"]),
                                 *work.layout_words())

    wanted, got = either(one_rank, parallel)
    compare_probabilities(work, probability_distance(got, wanted), wanted, one_rank, work.dtype)
    if transformers_oracle.can_compare({**work.inputs.model, "head": "mlm"}, work.dtype):
        answers = transformers_oracle.predictions(work.inputs, work.dtype, case["other"]["texts"], case["math"]["seq-len"])
        off = probability_distance(wanted, with_top_words(answers, case["math"]["top-k"]))
        # transformers computes norms in fp32 whatever the dtype.
        compare_probabilities(work, off, wanted, one_rank, "fp32", "in transformers")


def with_top_words(answers, count):
    """The answers with the most probable words only."""
    return [{**answer, "masks": [{**mask, "words": mask["words"][:count]} for mask in answer["masks"]]} if "masks" in answer
            else answer for answer in answers]


def compare_probabilities(work, off, wanted, run, dtype, whose="on one rank"):
    """`off`: the distance of answers to those of one rank, `wanted`, or of these to transformers'."""
    bounds = runs.bounds_of(work.inputs, dtype, work.case["layout"])

    def judge(each):
        size = each.size(bounds.unit, dtype, work.inputs.sum_length())
        responses = confirm.nudged(work, size, each.numbers, lambda path, n: probability_distance(run(path), wanted))
        if not each.explains(off, responses, dtype, work.inputs.sum_length()):
            raise Failure("probability", f"probabilities differ by {off:.3g} from those {whose} (nudged weights change them by "
                                         f"{responses})")

    if off > bounds.number:
        confirm.judged(judge, confirm.rounds_of(dtype))


def probability_distance(got, wanted):
    """The largest difference of two lists of answers. Compares the n-th largest probabilities: two names with equal
    probabilities may be in any order."""
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
    """Runs a command that must not be refused."""
    try:
        return work.program.answer(*words)
    except Refused as refusal:
        raise Failure("refusal", f"{' '.join(map(str, words))}: {refusal}") from None


def convert(work):
    """A chain of conversions must return the same tensors, and a converted model must compute the same loss."""
    source = work.inputs.base_path
    for number, step in enumerate(work.case["other"]["chain"], 1):
        target = work.path(f"form-{number}")
        words = ["convert", "--from", source, "--to", target, *words_of(step)]
        if number == 1 and work.inputs.adapter_path:
            words += ["--adapter", work.inputs.adapter_path]
        # The program must read its own files.
        work.program.answer(*words) if number == 1 else unrefused(work, *words)
        source = target
    last = work.path("last")
    unrefused(work, "convert", "--from", source, "--to", last)
    if work.inputs.adapter_path:
        return check_merged(*(tensor_file.read(os.path.join(folder, "model.safetensors"))
                              for folder in (last, work.inputs.model_path, work.inputs.base_path)))
    ended = work.program.answer("diff", work.inputs.model_path, last, codes=(0, 1))
    if ended.code:
        raise Failure("tensors", f"the tensors differ from the original: {ended.out[:300]}")
    if data.task_of(work.inputs.model) == "classify" and work.inputs.model["head"] == "trunk":
        return
    losses = [work.program.json(*eval_words(work, ["--seq-len", "8"], model))[0]["loss"]
              for model in (work.inputs.model_path, work.path("form-1"))]
    if losses[0] != losses[1] and "dtype" not in work.case["other"]["chain"][0]:
        raise Failure("loss", f"loss {losses[1]} after convert, {losses[0]} before")


def check_merged(got, wanted, base):
    """The merged weights are those of adapters.py, within the rounding of sums of up to 8 terms in fp32."""
    for name, (shape, values) in wanted.items():
        other = got.get(name, (None, []))[1]
        terms = [abs(x) + abs(x - b) for x, b in zip(values, base[name][1])]
        largest = max(terms)  # a norm of a row, which multiplies its elements, has the error of its largest ones
        off = tolerance.farthest(other, values)
        if list(got.get(name, ([], None))[0]) != list(shape) or not off <= 32 * tolerance.UNIT["fp32"] * largest:
            raise Failure("tensors", f"the merged {name} is off by {off:.3g}")


def int4(work):
    """Matrices in 4 bits: the file's numbers, the loss of the file, then any layout and one rank."""
    quantized_path = work.path("int4")
    work.program.answer("convert", "--from", work.inputs.model_path, "--to", quantized_path, "--dtype", work.dtype)
    count = quantized.check_int4(*(tensor_file.read(os.path.join(folder, "model.safetensors"))
                                   for folder in (work.inputs.model_path, quantized_path)))
    if not count:
        raise Refused("no matrix has inputs that are a multiple of 32")
    if "prompts" in work.case["other"]:
        return generate(work, quantized_path)
    # The file's numbers as fp32: only activations, keys and values are rounded less.
    wanted = work.program.json(*eval_words(work, ["--dtype", "fp32"], quantized_path, plain=True, leave_out="dtype"))[0]
    own = work.program.json(*eval_words(work, ["--batch-size", "1"], quantized_path, plain=True))[0]
    compare_loss(work, own, {"loss": wanted["loss"], "reference": own["loss"]},
                 lambda path: work.program.json(*eval_words(work, ["--batch-size", "1"], path, plain=True))[0], "in fp32")
    evaluate(work)


def keep_settings(given, back):
    """Gives a folder that was made of a GGUF file the config.json of the folder of which the file was made, so that a setting
    which the file changes shows. Special ids belong to a file's tokenizer."""
    configs = []
    for folder in (given, back):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            configs.append(json.load(file))
    configs[0].update({name: configs[1][name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")})
    with open(os.path.join(back, "config.json"), "w", encoding="ascii") as file:
        json.dump(configs[0], file)


def gguf(work):
    """A GGUF file: its tensors, and its ids on any layout."""
    other, given = work.case["other"], work.inputs.model_path
    dtype = other.get("dtype", "")
    path, back = work.path("model.gguf"), work.path("back")
    work.program.answer("convert", "--from", given, "--to", path, *(["--dtype", dtype] if dtype else []))
    unrefused(work, "convert", "--from", path, "--to", back)
    quantized.check_gguf(*(tensor_file.read(os.path.join(folder, "model.safetensors")) for folder in (given, back)),
                         dtype, work.inputs.model["file_dtype"])
    keep_settings(given, back)
    work.inputs.model_path = back
    generate(work, path)


def verify(work):
    """Random models must match themselves on one rank in fp64, by the program's own bounds."""
    words = ["verify", "--model", work.inputs.model_path, *words_of(work.case["math"]), *work.layout_words()]
    if work.case["other"].get("processes"):
        words = runs.launched(words, work.program.path, work.case["layout"])
    work.program.answer(*words)


def names(work):
    """Files with alternative tensor names must give the same results."""
    usual = Inputs({**work.case, "model": {**work.case["model"], "names": ""}}, work.path("usual"))
    if work.inputs.model["head"] == "trunk" and work.inputs.model["family"] in models.ENCODERS:
        renamed = work.inputs
        work.inputs = usual
        wanted = work.reference()
        work.inputs = renamed
        got = work.train("parallel", words_of(work.case["layout"]))
        training.compare_runs(work, got, wanted, work.case["layout"])
        return
    wanted, got = either(lambda: work.program.json(*eval_words(work, [], usual.model_path, plain=True))[0],
                         lambda: work.program.json(*eval_words(work, words_of(work.case["layout"])))[0])
    compare_loss(work, got, wanted, lambda model: work.program.json(*eval_words(work, [], model, plain=True))[0])


RUN = {"train": training.train, "preset": training.train, "big": training.train, "text": training.train,
       "experts": training.tune, "resume": training.resume, "tune": training.tune, "torch": training.tune, "launch": training.launch,
       "generate": generate, "eval": evaluate, "predict": predict, "convert": convert, "int4": int4, "gguf": gguf,
       "verify": verify, "restart": training.restart, "names": names, "plan": forecasts.plan, "lesson": forecasts.lesson,
       "extreme": extreme.check}


def run(case, program):
    """Runs a case; raises Failure or Refused."""
    RUN[case["kind"]](Work(case, program))
