"""Draws random cases. A case is a dict of plain values, which JSON can represent:

  kind      see KINDS; never `large`, which draws cases of other kinds
  drawn     "large" for these
  model     changes of models.DEFAULTS
  data      changes of data.DEFAULTS
  math      flags that affect the numbers; the reference has them too
  layout    flags that affect only how the numbers are computed; the reference has none of them
  other     further inputs of a kind
"""
import random

import extreme
import forecasts
import models
import wide
from draws import (MAX_RANKS, classifier_of, draw_adapter, draw_config, draw_data, draw_layout, draw_machine, draw_model, draw_plan,
                   draw_prompts, draw_saved_adapter, draw_texts_of_prompts, draw_training, draw_watched, forbid_all_beams, maybe,
                   needs_other_tokenizer, pass_short_lengths, pruned, text_for)

SAVING = {"save-every", "async-save", "keep-last"}  # flags that a kind which saves and resumes gives itself


def heads_of(model, heads):
    """The heads that the model's family can have."""
    return [head for head in heads if head != "pretraining" or model["family"] == "bert"]


def train(rng):
    model = draw_model(rng, ("llama", "gpt2", "bert", "llama", "gpt2", "bert", "imdb_bert"))
    if model.get("family") != "imdb_bert" and maybe(rng, 1 / 3 if model.get("family") in models.ENCODERS else 0.15):
        classifier_of(rng, model)
    data = draw_data(rng, model, 0 if needs_other_tokenizer(model) else 0.25)
    math = draw_training(rng)
    if maybe(rng, 0.25):
        math["eval-every"] = rng.randint(1, 3)
    layout = draw_watched(rng, math, draw_layout(rng, model, math["batch-size"]))
    other = {"processes": True} if maybe(rng, 0.08) else {}
    other |= draw_config(rng) | draw_plan(rng, layout, model)
    return {"model": model, "data": data, "math": math, "layout": layout, "other": other}


def any_train(rng):
    """Of some runs the data or the evaluations, not --steps, set the length."""
    case = train(rng)
    if case["data"].get("form", "ids") == "ids" and maybe(rng, 0.06):
        run_epochs(rng, case)
    elif maybe(rng, 0.06):
        stop_early(rng, case)
    return case


def run_epochs(rng, case):
    """--epochs instead of --steps and of the flags that depend on it."""
    case["math"].update({"epochs": rng.choice((1, 2)), "batch-size": max(4, case["math"]["batch-size"])})
    for name in ("steps", "warmup", "decay-steps"):
        case["math"].pop(name, None)
    case["layout"].pop("record-step", None)


def stop_early(rng, case):
    case["math"].update({"early-stop": rng.choice((1, 1, 2)), "eval-every": 1, "steps": rng.randint(3, 6), "lr": 1e-2})
    case["math"].pop("warmup", None)
    case["layout"].pop("record-step", None)  # the run may end before


def preset(rng):
    name = rng.choice(("llama-tiny", "gpt2-tiny", "bert-tiny", "imdb-bert"))
    family = {"llama-tiny": "llama", "gpt2-tiny": "gpt2", "bert-tiny": "bert", "imdb-bert": "imdb_bert"}[name]
    small = name in ("bert-tiny", "imdb-bert")
    model = {"family": family, "source": name, "layers": 2 if small else 6, "heads": 2 if name == "bert-tiny" else 4}
    data = {"form": "ids", "rows": 6, "shortest": 5, "longest": 16, "seed": rng.randrange(1000)}
    model["vocab"] = 257
    math = draw_training(rng)
    math.update({"steps": 2, "batch-size": rng.choice((2, 3, 4))})
    math.pop("warmup", None)
    return {"model": model, "data": data, "math": math, "layout": draw_layout(rng, model, math["batch-size"]), "other": {}}


def big(rng):
    """An embedding of more than ten million weights, or large weights."""
    model = draw_model(rng, ("llama", "gpt2"))
    model.pop("source", None)
    if maybe(rng, 0.4):
        model.update({"vocab": rng.randint(52_084, 60_000), "heads": 4, "head_dim": 48, "layers": 1, "inter": 64, "gain": 1.0})
        model.pop("hidden", None)
        model.pop("kv_heads", None)
    else:
        model["gain"] = rng.choice((30.0, 1e3))
    data = {"rows": 4, "shortest": 6, "longest": 6, "seed": rng.randrange(1000)}
    math = {"steps": 2, "batch-size": 4, "seq-len": 8, "lr": 1e-3, "optimizer": "sgd", "dtype": rng.choice(("fp32", "fp64"))}
    return {"model": model, "data": data, "math": math, "layout": draw_layout(rng, model, 4), "other": {}}


def masked_text(rng):
    """Shuffled text, often for masked LM."""
    case = train(rng)
    model = case["model"]
    model.pop("source", None)
    model["family"] = rng.choice(("bert", "bert", "roberta", "distilbert", "llama", "gpt2"))
    model.pop("head", None)
    for key in ("hidden", "kv_heads"):
        model.pop(key, None)
    case["data"] = {"form": text_for(rng, model), "rows": rng.randint(8, 40), "shortest": 2, "longest": rng.randint(4, 12),
                    "seed": rng.randrange(1000)}
    case["math"].pop("no-shuffle", None)
    return case


def resume_at(rng, case):
    """Saves in the middle on one layout and resumes on another. A recorded step may be one that the run before made."""
    math = case["math"]
    math.pop("warmup", None)
    first = draw_watched(rng, math, draw_layout(rng, case["model"], math["batch-size"]))
    case["layout"].pop("record-step", None)
    case["other"] = {name: value for name, value in case["other"].items() if name == "weights"}
    case["other"].update({"at": rng.randint(1, math["steps"] - 1), "first": without_saving(first)})
    if "eval-every" not in math and maybe(rng, 0.2):
        # The ended run is resumed with a larger --steps. Only a constant learning rate does not depend on the number of steps.
        case["other"]["ends"] = True
        case["other"]["first"].pop("record-step", None)
        for name in ("min-lr", "decay-steps"):
            math.pop(name, None)
        math["schedule"] = "constant"
    return case


def without_saving(layout):
    return {name: value for name, value in layout.items() if name not in SAVING}


def resume(rng):
    case = train(rng)
    case["math"]["steps"] = rng.randint(2, 5)
    return resume_at(rng, case)


def draw_tuning(rng, model, form, steps):
    """The flags of fine-tuning, which every layout shares."""
    flags = {"pairs": {"task": "dpo"}, "chats": {"chat-template": "chatml"}}.get(form, {})
    if form == "pairs" and maybe(rng, 0.5):
        flags["dpo-beta"] = rng.choice((0.01, 0.5, 3))
    if form == "chats" and maybe(rng, 0.4):
        flags["train-on"] = "all"
    family = model.get("family", "llama")
    is_lm = family not in models.ENCODERS and model.get("head") != "classify"
    if is_lm and (form in ("text", "text rows") or (form != "pairs" and maybe(rng, 0.5))):
        flags["packing"] = True
    if maybe(rng, 0.6):
        flags.update(draw_adapter(rng, family))
    if maybe(rng, 0.3):
        blocks = models.BLOCKS.get(family, "model.layers")
        parts = f"{blocks}.{rng.choice('0*')}.*.*.weight" if "lora" not in flags else rng.choice(("lora_B", f"{blocks}.0"))
        flags["param-group"] = f"{parts}:" + rng.choice(("lr-factor=0", "lr-factor=3,weight-decay=0"))
    if maybe(rng, 0.3):
        flags.update({"schedule": "wsd", "decay-steps": rng.randint(1, steps), "warmup": 0})
    if maybe(rng, 0.3):
        flags.setdefault("schedule", "linear")
        flags["min-lr"] = 5e-5
    if maybe(rng, 0.15):
        flags["optimizer"] = "muon"
    if maybe(rng, 0.3):
        flags["ema"] = rng.choice((0.5, 0.99))
    return flags


def tuning_data(rng, model, math):
    """The data of fine-tuning, in one of the forms that the family reads."""
    is_encoder = model.get("family") in models.ENCODERS
    if maybe(rng, 0.5 if is_encoder else 0.2):
        classifier_of(rng, model)
    if is_encoder or model.get("head") == "classify":
        return draw_data(rng, model)
    form = rng.choice(("ids", "ids", "pairs", "chats", "text rows", "text"))
    if form == "ids":
        data = draw_data(rng, model, 0)
        data.pop("blank_rows", None)
        return data
    model["tokenizer"] = "bytes"
    math["seq-len"] = rng.choice((24, 64))
    return {"form": form, "rows": rng.randint(2, 10), "shortest": 1, "longest": rng.randint(1, 5), "seed": rng.randrange(1000)}


def tune(rng):
    """Fine-tuning: adapters, preferences, chats, packing, mixes of files, groups of parameters; some runs resume, or stop early."""
    model = draw_model(rng, ("llama", "llama", "llama", "gpt2", "bert"))
    model.pop("source", None)
    math = draw_training(rng)
    data = tuning_data(rng, model, math)
    form = data.get("form", "ids")
    math.update(draw_tuning(rng, model, form, math["steps"]))
    if maybe(rng, 0.4):
        math["eval-every"] = rng.randint(1, 3)
    other = {"weights": rng.choice(([0.7, 0.3], [1, 5]))} if form not in ("pairs", "csv") and maybe(rng, 0.2) else {}
    layout = draw_watched(rng, math, draw_layout(rng, model, math["batch-size"]))
    case = {"model": model, "data": data, "math": math, "layout": layout, "other": other}
    if math["steps"] > 1 and maybe(rng, 0.35):
        return resume_at(rng, case)
    if maybe(rng, 0.08):
        stop_early(rng, case)
        math.pop("decay-steps", None)
    elif not other and maybe(rng, 0.06):
        run_epochs(rng, case)
    other |= {"processes": True} if maybe(rng, 0.08) else {}
    other |= draw_config(rng) | draw_plan(rng, layout, model)
    return case


def experts(rng):
    """Experts that data-parallel ranks share out. A token has some of them, so that each rank gets another number of tokens."""
    case = tune(rng) if maybe(rng, 0.4) else train(rng)
    model, math = case["model"], case["math"]
    for name in ("source", "head", "tied", "kv_heads", "tokenizer", "dropout"):
        model.pop(name, None)
    model.update({"family": rng.choice(("mixtral", "qwen3_moe")), "experts": rng.choice((2, 3, 4, 6)), "balances": maybe(rng, 0.5)})
    if case["data"].get("form", "ids") != "ids":
        model["tokenizer"] = "bytes"
        if case["data"]["form"] == "csv":
            case["data"]["form"] = "text rows"
    if math["dtype"] in ("fp32", "fp64"):  # in others, rounding may decide which experts a token has
        model["experts_per_token"] = rng.randint(1, model["experts"])
    if maybe(rng, 0.9):  # adapters of experts have none
        math.pop("lora-dropout", None)
    if "param-group" in math and not math["param-group"].startswith("model.layers"):
        del math["param-group"]
    dp = rng.choice((2, 2, 3, 4))
    math["batch-size"] = max(dp, math["batch-size"])
    layout = {**draw_layout(rng, model, math["batch-size"]), "dp": dp}
    layout["tp"] = min(layout.get("tp", 1), MAX_RANKS // dp)
    layout["pp"] = min(layout.get("pp", 1), MAX_RANKS // dp // layout["tp"])
    if layout["pp"] == 1:
        layout.pop("virtual-pipeline", None)
        layout.pop("schedule-pp", None)
    if layout["tp"] == 1:
        layout.pop("sequence-parallel", None)
    layout["ep"] = rng.choice([n for n in range(2, dp + 1) if dp % n == 0])
    if maybe(rng, 0.6):
        layout["recompute"] = rng.choice(("full", "selective"))
    if model["balances"]:
        layout["micro-batch-size"] = rng.randint(1, -(-math["batch-size"] // dp))
    layout = {name: value for name, value in layout.items() if value != 1 or name not in ("tp", "pp", "virtual-pipeline")}
    case["layout"] = draw_watched(rng, math, layout)
    if "first" in case["other"]:
        case["layout"].pop("record-step", None)
        first = {**case["layout"], "recompute": "none"} if model["balances"] else draw_layout(rng, model, math["batch-size"])
        case["other"]["first"] = without_saving(first)
    case["other"].pop("plan", None)
    return {**case, "model": pruned(model, models.DEFAULTS)}


def torch(rng):
    """Training that transformers and torch.optim can repeat, step by step: samples in the order of the file or all of them in each
    step, no random numbers. In bf16 and fp16, torch has fp32."""
    case = rng.choice((train, tune, tune, experts))(rng)
    model, data, math = case["model"], case["data"], case["math"]
    model["family"] = "bert" if model.get("family") == "imdb_bert" else model.get("family", "llama")
    for name in ("dropout", "hidden"):  # transformers refuses widths that the heads do not divide
        model.pop(name, None)
    if model["family"] in models.ENCODERS:
        data.clear()
        data.update(draw_data(rng, model, 0))
    data.pop("blank_rows", None)
    if data.get("mask") == "left":
        data["mask"] = "right"
    if data.get("form") == "chats":
        data["longest"] = 1
        math["seq-len"] = 64  # of which an answer to one word has some tokens
    math.update({"no-shuffle": True, "dtype": rng.choice(("fp32", "fp32", "fp32", "fp64", "fp64", "bf16", "bf16", "fp16"))})
    if math["dtype"] in ("bf16", "fp16"):  # rounding may decide which experts a token has
        model.pop("experts_per_token", None)
    left_out = {"lora-dropout", "lora-base"}
    if model["family"] in models.WITH_EXPERTS:  # PEFT has no adapters of joined experts, torch no Muon
        left_out |= {name for name in math if "lora" in name or name == "dora" or "lora" in str(math[name])}
        math["optimizer"] = "adamw" if math["optimizer"] == "muon" else math["optimizer"]
    elif maybe(rng, 0.15):
        math["optimizer"] = "muon"
    if model.get("balances"):  # the auxiliary loss is of a micro-batch's sequences
        left_out.add("packing")
    elif "packing" not in math and data.get("form", "ids") == "ids" and maybe(rng, 0.3):
        data["rows"] = math["batch-size"]
        left_out.add("no-shuffle")
    case["math"] = {name: value for name, value in math.items() if name not in left_out}
    case["other"].pop("weights", None)
    return case


def launch(rng):
    case = rng.choice((train, train, tune))(rng)
    case["other"] = {name: value for name, value in case["other"].items() if name == "weights"}
    case["layout"].setdefault("threads-per-rank", 1)
    if maybe(rng, 0.2):
        case["layout"]["transport"] = "tcp"
    case["layout"]["gemm"] = rng.choice(("mkl", "onednn"))
    if not set(case["layout"]) & {"tp", "dp", "pp"}:
        case["layout"]["tp"] = 2
    return case


def draw_ep(rng, model, tp):
    """--ep 2 or none. Some decoders get experts, which few models have."""
    if models.full(model)["family"] in models.DECODERS and maybe(rng, 0.2):
        model.update({"family": rng.choice(models.WITH_EXPERTS), "experts": rng.choice((2, 3, 5))})
    m = models.full(model)
    fits = m["family"] in models.WITH_EXPERTS and 2 * tp <= MAX_RANKS and m["experts"] >= 2
    return {"ep": 2} if fits and maybe(rng, 0.7) else {}


def generate(rng):
    model = draw_model(rng, ("llama", "gpt2"))
    model.pop("source", None)
    math = {"max-new-tokens": rng.randint(1, rng.choice((20, 20, 20, 34))), "dtype": rng.choice(("fp32", "fp32", "fp32", "fp64", "fp64", "int8", "bf16"))}
    options = {"repetition-penalty": (0.7, 1.3, 2.0), "no-repeat-ngram-size": (1, 2, 3), "eos-id": (0, 1, 5),
               "length-penalty": (0.5, -1.0, 2.0)}
    for name, values in options.items():
        if maybe(rng, 0.25):
            math[name] = rng.choice(values)
    if maybe(rng, 0.5):
        math["num-beams"] = rng.randint(2, 5)
        if maybe(rng, 0.5):
            math["num-return-sequences"] = rng.randint(1, math["num-beams"])
        if maybe(rng, 0.4):
            math["early-stopping"] = rng.choice(("true", "false", "never"))
    if maybe(rng, 0.35):
        math["do-sample"] = True
        math["seed"] = rng.randrange(100)
        for name, values in {"temperature": (0.5, 1.7, 0), "top-k": (0, 3, 10), "top-p": (0.3, 0.9),
                             "num-return-sequences": (1, 2)}.items():
            if maybe(rng, 0.4):
                math[name] = rng.choice(values)
    if maybe(rng, 0.1):
        math["kv-cache-dtype"] = rng.choice(("int8", "int8", "bf16"))
    heads = models.full(model)["heads"]
    layout = {"tp": rng.choice([n for n in (1, 2, 3, 4) if n <= heads]), **draw_machine(rng)}
    layout |= draw_ep(rng, model, layout["tp"])
    forbids = maybe(rng, 0.06)
    other = {"prompts": forbid_all_beams(rng, model, math) if forbids else draw_prompts(rng, model)}
    if maybe(rng, 0.5):
        layout["batch-size"] = rng.randint(1, 8)
    if "do-sample" not in math and len(other["prompts"]) > 1 and maybe(rng, 0.25):
        other["apart"] = True
    if maybe(rng, 0.1) and layout["tp"] > 1:
        other["processes"] = True
    if maybe(rng, 0.15):
        other["prompt_file"] = True
    if not forbids and maybe(rng, 0.1):
        model["tokenizer"] = "bytes"
        math["stop"] = [chr(code) for code in rng.sample(range(33, 127), 20)]
    elif not forbids and maybe(rng, 0.25):
        other["adapter"] = draw_saved_adapter(rng, model)
    elif not forbids and maybe(rng, 0.1):
        draw_texts_of_prompts(rng, model, other)
    if model.get("rope") == "longrope" and maybe(rng, 0.5):
        pass_short_lengths(rng, model, other)
    if maybe(rng, 0.06):
        other["record"] = rng.randint(1, math["max-new-tokens"])
    if maybe(rng, 0.03):
        layout["no-stream"] = True
    other |= draw_config(rng)
    return {"model": model, "data": {}, "math": math, "layout": layout, "other": other}


def evaluate(rng):
    model = draw_model(rng, ("llama", "gpt2", "bert"))
    model.pop("source", None)
    if maybe(rng, 0.4 if model.get("family") in models.ENCODERS else 0.15):
        classifier_of(rng, model)
    data = draw_data(rng, model)
    math = {"seq-len": rng.choice((8, 12, 24)), "dtype": rng.choice(("fp32", "fp32", "fp64", "bf16", "int8"))}
    heads = models.full(model)["heads"]
    layout = {"tp": rng.choice([n for n in (1, 2, 3, 4) if n <= heads]), "batch-size": rng.randint(1, 9), **draw_machine(rng)}
    layout |= draw_ep(rng, model, layout["tp"])
    other = {"processes": True} if maybe(rng, 0.1) and layout["tp"] > 1 else {}
    is_lm = models.full(model)["family"] not in models.ENCODERS and model.get("head") != "classify"
    if is_lm and maybe(rng, 0.1):
        math["kv-cache-dtype"] = rng.choice(("int8", "bf16"))
    if is_lm and maybe(rng, 0.3):
        model["tokenizer"] = "bytes"
        data = {"form": "pairs", "rows": rng.randint(1, 10), "shortest": 1,
                "longest": rng.randint(1, 5), "seed": rng.randrange(1000)}
        math["seq-len"] = rng.choice((24, 48, 64))
    if is_lm and maybe(rng, 0.3) and math["dtype"] in ("fp32", "fp64"):
        other["adapter"] = draw_saved_adapter(rng, model)
    if data.get("form") == "pairs":
        math["task"] = "dpo"
        if maybe(rng, 0.6):
            math["dpo-beta"] = rng.choice((0.01, 0.5, 3))
        # Without it, an adapter is compared with its base model.
        other["reference"] = "adapter" not in other or maybe(rng, 0.5)
    other |= draw_config(rng)
    return {"model": model, "data": data, "math": math, "layout": layout, "other": other}


def predict(rng):
    model = draw_model(rng, ("bert",))
    model.pop("source", None)
    model["head"] = rng.choice(heads_of(model, ("classify", "mlm", "pretraining")))
    model["tokenizer"] = "words"
    texts = []
    for _ in range(rng.choice((1, 2, 4, 7))):
        words = [rng.choice(models.WORDS).lstrip("#") for _ in range(rng.randint(1, rng.choice((12, 12, 40))))]
        if model["head"] != "classify":
            words.insert(rng.randint(0, len(words)), "[MASK]")
        texts.append(" ".join(words))
    heads = models.full(model)["heads"]
    layout = {"tp": rng.choice([n for n in (1, 2, 3, 4) if n <= heads]), "batch-size": rng.randint(1, 5), **draw_machine(rng)}
    math = {"dtype": rng.choice(("fp32", "fp32", "fp64", "bf16")), "seq-len": 32, "top-k": rng.choice((1, 5, 30))}
    return {"model": pruned(model, models.DEFAULTS), "data": {}, "math": math, "layout": layout,
            "other": {"texts": texts, **({"text_file": True} if maybe(rng, 0.2) else {}), **draw_config(rng)}}


def convert(rng):
    model = draw_model(rng, ("llama", "gpt2", "bert"))
    model.pop("source", None)
    if model.get("family") in models.ENCODERS and maybe(rng, 0.6):
        model["head"] = rng.choice(heads_of(model, ("classify", "pretraining", "trunk")))
    m = models.full(model)
    chain = []
    for _ in range(rng.randint(1, 3)):
        step = {"format": rng.choice(("safetensors", "bin", "oslo", "nxd"))}
        if step["format"] in ("oslo", "nxd"):
            step["tp"] = rng.choice([n for n in (1, 2, 3, 4) if n <= m["heads"]])
            step["pp"] = rng.choice([n for n in (1, 2, 3) if n <= m["layers"]])
        elif maybe(rng, 0.5):
            step["max-shard-size"] = rng.choice(("2KB", "10KB", "1MiB"))
        chain.append(step)
    if maybe(rng, 0.3) and models.full(model)["file_dtype"] != "fp64":
        chain[-1]["dtype"] = "fp64"
        chain.append({"format": "safetensors", "dtype": m["file_dtype"]})
    other = {"chain": chain}
    if m["family"] not in models.ENCODERS and maybe(rng, 0.35):
        other["adapter"] = draw_saved_adapter(rng, model)
        chain[:] = chain[:1]
        chain[0].pop("dtype", None)
    return {"model": model, "data": {"rows": 3, "shortest": 6, "longest": 6}, "math": {}, "layout": {}, "other": other}


def int4(rng):
    """Matrices in 4 bits. Only those whose inputs are a multiple of 32 are rounded."""
    model = draw_model(rng, ("llama", "llama", "gpt2"))
    model.pop("source", None)
    model["heads"] = rng.choice((1, 2, 4, 4, 8))
    model["head_dim"] = 32 // model["heads"] * rng.choice((1, 1, 2, 3))
    model["inter"] = rng.choice((20, 32, 64, 96))
    model.pop("file_dtype", None)
    family = models.full(model)["family"]
    if family in models.DECODERS:
        model["kv_heads"] = rng.choice([k for k in (1, 2, 4, 8) if k <= model["heads"]])
        if family != "phi3":
            model["hidden"] = rng.choice((32, 64, 40))
    math = {"dtype": rng.choice(("int4", "int4_sym"))}
    layout = {"tp": rng.choice([n for n in (1, 2, 3, 4) if n <= model["heads"]]), **draw_machine(rng)}
    other = {"processes": True} if maybe(rng, 0.1) and layout["tp"] > 1 else {}
    if maybe(rng, 0.4):
        math["max-new-tokens"] = rng.randint(1, 12)
        other["prompts"] = draw_prompts(rng, model)
        return {"model": model, "data": {}, "math": math, "layout": layout, "other": other}
    math["seq-len"] = rng.choice((8, 12, 24))
    layout["batch-size"] = rng.randint(1, 9)
    return {"model": pruned(model, models.DEFAULTS), "data": draw_data(rng, model, 0), "math": math, "layout": layout, "other": other}


def gguf(rng):
    """Families and settings that a GGUF file can hold."""
    case = generate(rng)
    model = case["model"]
    if model.get("family") != "gpt2":
        model["family"] = rng.choice(("llama", "llama", "qwen2", "qwen3", "mistral", "phi3", "smollm3"))
        ropes = ("default", "longrope") if model["family"] == "phi3" else ("parameters", "linear", "llama3", "yarn")
        model["rope"] = rng.choice(("default", *ropes))
        for name in ("activation", "mlp_bias", "attention_bias", "window", "experts"):
            model.pop(name, None)
        if model["family"] == "smollm3":  # llama.cpp has no other choice
            model.update({"no_rope_every": 4, "layers": rng.choice((2, 4, 5))})
    for name in ("activation", "scale_by_layer", "unscaled"):
        model.pop(name, None)
    dtype = rng.choice(("", "", "fp32", "bf16", "fp16", "q8_0", "q8_0", "q4_k_m"))
    if dtype.startswith("q"):
        model["heads"] = rng.choice((2, 4, 8))
        model["head_dim"] = 16 if dtype == "q8_0" or maybe(rng, 0.5) else 256 // model["heads"]
        model["inter"] = rng.choice((64, 96, 50)) if model["head_dim"] == 16 else 256
        model.pop("hidden", None)
        if "kv_heads" in model:
            model["kv_heads"] = rng.choice((1, 2))
        case["layout"]["tp"] = rng.choice((1, 2))
    case["other"].update({"dtype": dtype} if dtype else {})
    for name in ("apart", "adapter"):
        case["other"].pop(name, None)
    case["layout"].pop("ep", None)
    case["math"]["dtype"] = rng.choice(("fp32", "fp32", "fp64"))
    return {**case, "model": pruned(model, models.DEFAULTS)}


def verify(rng):
    model = draw_model(rng, ("llama", "llama", "gpt2", "bert"))
    model.pop("source", None)
    if maybe(rng, 0.5 if model.get("family") in models.ENCODERS else 0.15):
        classifier_of(rng, model)
    m = models.full(model)
    layout = {"tp": rng.choice([n for n in (1, 2, 2, 3, 4) if n <= m["heads"]]), "dp": rng.choice((1, 2, 2)), **draw_machine(rng)}
    layout |= draw_ep(rng, model, layout["tp"]) if layout["dp"] == 2 else {}
    if maybe(rng, 0.4):
        layout["sequence-parallel"] = True
    math = {"dtype": rng.choice(("fp32", "fp32", "bf16", "fp16", "fp64")), "seed": rng.randrange(100)}
    other = {"processes": True} if maybe(rng, 0.1) and layout["tp"] * layout["dp"] > 1 else {}
    if maybe(rng, 0.06):
        return {"model": model, "data": {}, "math": {**math, "fuzz": rng.choice((1, 2))}, "layout": {"tp": layout["tp"]}, "other": {}}
    if maybe(rng, 0.1):
        blocks = models.BLOCKS.get(m["family"], "model.layers")
        math["layer"] = f"{blocks}.{rng.choice(('0', '*'))}"
    other |= draw_config(rng) | draw_plan(rng, layout, model)
    return {"model": model, "data": {}, "math": math, "layout": layout, "other": other}


def restart(rng):
    case = rng.choice((train, train, tune))(rng)
    case["math"]["steps"] = rng.randint(4, 8)
    case["math"].pop("early-stop", None)
    resume_at(rng, case)
    other, math = case["other"], case["math"]
    other.pop("ends", None)
    other.update({"at": rng.randint(1, math["steps"] - 1), "save-every": rng.choice((1, 1, 2, 3))})
    if maybe(rng, 0.4):
        other["first"]["async-save"] = True
    if maybe(rng, 0.4) and set(other["first"]) & {"tp", "dp", "pp"}:
        other["rank"] = rng.randrange(MAX_RANKS)
        case["layout"] = {name: value for name, value in case["layout"].items() if name not in SAVING}
    return case


def names(rng):
    """Files with alternative tensor names, and encoders without heads that become classifiers."""
    model = draw_model(rng, ("bert", "bert", "gpt2", "llama"))
    model.pop("source", None)
    model["names"] = rng.choice(("old", "extra"))
    other = {}
    if model.get("family") in models.ENCODERS:
        model["head"] = rng.choice(heads_of(model, ("mlm", "classify", "pretraining", "trunk", "trunk")))
    data = {"rows": 5, "shortest": 4, "longest": 8, "seed": rng.randrange(1000)}
    math = {"seq-len": 8, "dtype": rng.choice(("fp32", "fp64"))}
    layout = {"tp": rng.choice([n for n in (1, 2, 3) if n <= models.full(model)["heads"]])}
    if model.get("head") == "trunk":
        math = draw_training(rng)
        layout = draw_layout(rng, model, math["batch-size"])
    return {"model": pruned(model, models.DEFAULTS), "data": data, "math": math, "layout": layout, "other": other}


def plan(rng):
    """A layout, often one that does not fit, and the forecast of it in one of its forms."""
    case = rng.choice((tune, experts, train, train))(rng)
    model = case["model"]
    model.pop("tokenizer", None)
    math = {name: value for name, value in case["math"].items() if name in forecasts.OF_PLAN or name == "steps"}
    math["optimizer"] = rng.choice(("adamw", "adam", "sgd", "muon"))
    if "lora" not in math:
        model["source"] = "config"
    layout = {name: value for name, value in case["layout"].items() if name in forecasts.OF_PLAN}
    data = {"rows": 6, "shortest": 5, "longest": math["seq-len"], "seed": 1}
    form = rng.choice(("layout", "layout", "layout", "ranks", "dry-run", "cluster"))
    return {"model": pruned(model, models.DEFAULTS), "data": data, "math": math, "layout": layout,
            "other": {"form": form, "ranks": rng.choice((1, 2, 3, 4, 6, 8))}}


def lesson(rng):
    return {"model": {}, "data": {}, "math": {}, "layout": {}, "other": {"name": rng.choice(("tp", "sp", "pp", "zero", "fsdp"))}}


def large(rng):
    """A case of another kind, large enough for several threads per rank."""
    kind = rng.choice(wide.LARGE_KINDS)
    case = {"kind": kind, **KINDS[kind][0](rng)}
    wide.enlarge(rng, case)
    return {**case, "drawn": "large"}


# Maps a kind to (its draw function, its share of all cases).
KINDS = {"train": (any_train, 34), "preset": (preset, 3), "big": (big, 2), "text": (masked_text, 8), "resume": (resume, 7),
         "tune": (tune, 20), "torch": (torch, 12), "experts": (experts, 8),
         "launch": (launch, 3), "generate": (generate, 16), "eval": (evaluate, 8), "predict": (predict, 4),
         "convert": (convert, 5), "int4": (int4, 5), "gguf": (gguf, 5), "verify": (verify, 4), "restart": (restart, 4),
         "names": (names, 4), "plan": (plan, 5), "lesson": (lesson, 0.5), "large": (large, 2), "extreme": (extreme.draw, 9)}


def draw_kind(rng):
    return rng.choices(list(KINDS), [share for _, share in KINDS.values()])[0]


def rng_of(seed, index):
    return random.Random(f"{seed}:{index}")


def draw(seed, index, kind=None):
    """Case `index` of a seed: the same on every machine."""
    rng = rng_of(seed, index)
    drawn = draw_kind(rng)
    kind = kind or drawn
    case = {"kind": kind, **KINDS[kind][0](rng)}
    if kind != "large":
        wide.widen(rng, case)
    return case
