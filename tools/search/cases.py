"""Draws random cases. A case is a dict of plain values, which JSON can represent:

  kind      see KINDS
  model     changes of models.DEFAULTS
  data      changes of data.DEFAULTS
  math      flags that affect the numbers; the reference has them too
  layout    flags that affect only how the numbers are computed; the reference has none of them
  other     further inputs of a kind
"""
import random

import extreme
import models

KERNELS = ("attention", "norm", "gate", "rotary", "loss", "few-rows", "panels", "adam")
MAX_RANKS = 8


def maybe(rng, share):
    return rng.random() < share


def draw_sizes(rng):
    heads = rng.choice((1, 2, 2, 3, 4, 4, 5, 6, 7, 8))
    model = {"layers": rng.choice((1, 2, 2, 3, 4)), "heads": heads, "head_dim": rng.choice((2, 4, 6, 8, 8, 16)),
             "inter": rng.choice((5, 8, 16, 24, 33, 50, 64)), "vocab": rng.choice((rng.randint(17, 300), rng.randint(17, 97))),
             "tied": maybe(rng, 0.4), "gain": rng.choice((0.5, 1.0, 1.0, 2.0)), "seed": rng.randrange(1000)}
    if maybe(rng, 0.2):
        model["file_dtype"] = rng.choice(("bf16", "fp16", "fp64"))
    if maybe(rng, 0.3):
        model["activation"] = rng.choice(("silu", "gelu", "gelu_new", "relu", "gelu_pytorch_tanh"))
    if maybe(rng, 0.2):
        model["pad_id"] = rng.choice((0, 1, model["vocab"] - 1))
    if maybe(rng, 0.3):
        model["eos_id"] = rng.choice((0, 2, model["vocab"] - 1))
    return model


def draw_model(rng, families):
    model = draw_sizes(rng)
    family = rng.choice(families)
    if family == "llama" and maybe(rng, 0.6):
        family = rng.choice(tuple(models.DECODERS))
    model["family"] = family
    heads = model["heads"]
    if family in models.DECODERS:
        model["kv_heads"] = rng.choice([k for k in range(1, heads + 1) if heads % k == 0])
        model["attention_bias"], model["mlp_bias"] = maybe(rng, 0.25), maybe(rng, 0.25)
        scaled = ("longrope",) if family == "phi3" else ("linear", "llama3", "yarn", "longrope")
        if family == "gemma3_text":
            scaled = ("linear", "llama3", "yarn")
        elif model["head_dim"] > 2 and family != "phi3":  # transformers divides by head_dim - 2
            scaled += ("dynamic",)
        model["rope"] = rng.choice(("default", "default", "parameters", *scaled))
        model["theta"] = rng.choice((10000.0, 10000.0, 500.0, 500000.0))
        model["window"] = rng.choice((0, 1, 2, 5, 5, 11))
        if family in ("mixtral", "qwen3_moe"):
            model["experts"] = rng.choice((1, 2, 3, 5))
        if maybe(rng, 0.3) and family != "phi3":  # transformers wants hidden = heads x head_dim there
            model["hidden"] = rng.randint(3, 48)
    if family != "llama":
        model["dropout"] = rng.choice((0.0, 0.0, 0.1, 0.4))
    if family == "gpt2":
        model["scale_by_layer"], model["unscaled"] = maybe(rng, 0.15), maybe(rng, 0.1)
    if family in ("bert", "imdb_bert"):
        model["classes"] = rng.choice((2, 2, 3, 5, 7))
        model["token_types"] = rng.choice((1, 2, 2, 3))
    if family == "imdb_bert":
        model["source"] = "config"
    elif maybe(rng, 0.15):
        model["source"] = "config"
    return pruned(model, models.DEFAULTS)


def pruned(given, defaults):
    """`given` without default values."""
    return {key: value for key, value in given.items() if key not in defaults or value != defaults[key]}


def text_for(rng, model):
    """Gives the model a tokenizer, so that it can read text, and returns a form of text for it."""
    bert = model.get("family") in ("bert", "imdb_bert")
    model["tokenizer"] = "words" if bert and model.get("source", "folder") == "folder" else "bytes"
    classifies = model.get("family") == "imdb_bert" or (bert and model.get("head") in ("classify", "trunk"))
    return rng.choice(("csv", "text rows") if classifies else ("text", "text rows"))


def draw_data(rng, model, share_of_text=0.25):
    data = {"rows": rng.randint(1, 14), "seed": rng.randrange(1000), "longest": rng.randint(2, 24)}
    data["shortest"] = data["longest"] if maybe(rng, 0.4) else rng.randint(2, data["longest"])
    if maybe(rng, share_of_text):
        data["form"] = text_for(rng, model)
        data["rows"] += 4
        return data
    data["labels"] = rng.choice(("all", "some"))
    data["mask"] = rng.choice(("", "", "left", "right", "holes"))
    if maybe(rng, 0.2):
        data["blank_rows"] = rng.randint(1, 3)
    data["token_types"] = maybe(rng, 0.3)
    return data


def needs_other_tokenizer(model):
    """Whether text needs a model folder: a new masked LM has the byte tokenizer, which has no mask token."""
    return model.get("family") == "bert" and model.get("head", "mlm") == "mlm" and model.get("source", "folder") == "config"


def draw_training(rng):
    steps = rng.randint(1, 4)
    batch = rng.choice((1, 2, 3, 4, 4, 5, 6, 8))
    flags = {"steps": steps, "batch-size": batch, "seq-len": rng.choice((8, 12, 17, 24)), "seed": rng.randrange(100),
             "lr": rng.choice((1e-4, 1e-3, 1e-2)), "optimizer": rng.choice(("adamw", "adamw", "adam", "sgd", "sgd")),
             "dtype": rng.choice(("fp32", "fp32", "fp32", "fp64", "bf16", "bf16", "fp16"))}
    options = {"schedule": ("linear", "constant"), "warmup": (0, 1, steps), "adam-betas": ("0.8,0.99", "0,0.9"),
               "weight-decay": (0, 0.5), "decay-on": ("all",), "clip": (0, 0.05, 100), "adam-eps": (1e-6, 1e-3)}
    for name, values in options.items():
        if maybe(rng, 0.25):
            flags[name] = rng.choice(values)
    if maybe(rng, 0.2):
        flags["no-shuffle"] = True
    return flags


def draw_machine(rng):
    flags = {}
    if maybe(rng, 0.25):
        flags["gemm"] = rng.choice(("mkl", "onednn", "auto"))
    if maybe(rng, 0.3):
        some = rng.sample(KERNELS, rng.randint(1, 4))
        flags["plain-kernels"] = rng.choice(("all", ",".join(some)))
    if maybe(rng, 0.3):
        flags["threads-per-rank"] = rng.choice((1, 2, 3))
    return flags


def draw_layout(rng, model, batch):
    """Mostly valid layouts; one in thirty is drawn without checks, to test refusals too."""
    m = models.full(model)
    if maybe(rng, 1 / 30):
        tp, pp, dp = rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 3)
    else:
        tp = rng.choice([n for n in (1, 2, 2, 3, 4) if n <= m["heads"]])
        pp = rng.choice([n for n in (1, 1, 2, 3, 4) if n <= m["layers"] and tp * n <= MAX_RANKS])
        dp = rng.choice([n for n in (1, 1, 2, 2, 3) if n <= batch and tp * pp * n <= MAX_RANKS])
    flags = {"tp": tp, "pp": pp, "dp": dp, **draw_machine(rng)}
    flags = {key: value for key, value in flags.items() if value != 1 or key not in ("tp", "pp", "dp")}
    if pp > 1:
        stages = rng.choice((1, 1, 2))
        if stages * pp <= m["layers"]:
            flags["virtual-pipeline"] = stages
        if maybe(rng, 0.6):
            schedules = ("gpipe", "zero-bubble") + (("1f1b",) if flags.get("virtual-pipeline", 1) == 1 else ("interleaved",))
            flags["schedule-pp"] = rng.choice(schedules)
    if maybe(rng, 0.4) and tp > 1:
        flags["sequence-parallel"] = True
    sharding = rng.choice(("", "zero", "fsdp")) if dp > 1 or maybe(rng, 0.05) else ""
    flags.update({"zero": {"zero": 1}, "fsdp": {"fsdp": True}, "": {}}[sharding])
    if dp > 1 and m["family"] in ("mixtral", "qwen3_moe") and maybe(rng, 0.5):
        flags["ep"] = dp
    if maybe(rng, 0.35):
        flags["recompute"] = rng.choice(("full", "selective"))
    if maybe(rng, 0.4):
        flags["micro-batch-size"] = rng.randint(1, max(1, -(-batch // dp)))
    if maybe(rng, 0.2):
        flags["save-every"] = rng.randint(1, 3)
        flags["async-save"] = maybe(rng, 0.6)
        if maybe(rng, 0.3):
            flags["keep-last"] = 1
    return {key: value for key, value in flags.items() if value is not False}


def train(rng):
    model = draw_model(rng, ("llama", "gpt2", "bert", "llama", "gpt2", "bert", "imdb_bert"))
    if model.get("family") == "bert":
        head = rng.choice(("mlm", "mlm", "classify"))
        if head != "mlm":
            model["head"] = head
    data = draw_data(rng, model, 0 if needs_other_tokenizer(model) else 0.25)
    math = draw_training(rng)
    if maybe(rng, 0.25):
        math["eval-every"] = rng.randint(1, 3)
    other = {"processes": True} if maybe(rng, 0.08) else {}
    return {"model": model, "data": data, "math": math, "layout": draw_layout(rng, model, math["batch-size"]), "other": other}


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
        model.update({"vocab": rng.randint(50_001, 60_000), "heads": 4, "head_dim": 48, "layers": 1, "inter": 64, "gain": 1.0})
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
    model["family"] = rng.choice(("bert", "bert", "llama", "gpt2"))
    model.pop("head", None)
    for key in ("hidden", "kv_heads"):
        model.pop(key, None)
    case["data"] = {"form": text_for(rng, model), "rows": rng.randint(8, 40), "shortest": 2, "longest": rng.randint(4, 12),
                    "seed": rng.randrange(1000)}
    case["math"].pop("no-shuffle", None)
    return case


def resume(rng):
    case = train(rng)
    case["math"]["steps"] = steps = rng.randint(2, 5)
    case["math"].pop("warmup", None)
    batch = case["math"]["batch-size"]
    case["other"] = {"at": rng.randint(1, steps - 1), "first": draw_layout(rng, case["model"], batch)}
    case["other"]["first"].pop("save-every", None)
    case["other"]["first"].pop("async-save", None)
    case["other"]["first"].pop("keep-last", None)
    return case


def draw_adapter(rng, gpt2):
    flags = {"lora": rng.choice((1, 2, 3, 4))}
    targets = ("all-linear", "c_attn,c_proj", "c_fc") if gpt2 else ("all-linear", "q_proj,v_proj", "o_proj")
    for name, values in {"lora-alpha": (1, 3.5), "lora-targets": targets, "lora-dropout": (0.2,)}.items():
        if maybe(rng, 0.35):
            flags[name] = rng.choice(values)
    if maybe(rng, 0.4):
        flags.update(rng.choice(({"rslora": True}, {"dora": True}, {"lora-base": "int8"})))
    return flags


def draw_tuning(rng, model, form, steps):
    """The flags of fine-tuning, which every layout shares."""
    flags = {"pairs": {"task": "dpo"}, "chats": {"chat-template": "chatml"}}.get(form, {})
    if form == "pairs" and maybe(rng, 0.5):
        flags["dpo-beta"] = rng.choice((0.01, 0.5, 3))
    if form == "chats" and maybe(rng, 0.4):
        flags["train-on"] = "all"
    if form != "pairs" and maybe(rng, 0.5):
        flags["packing"] = True
    gpt2 = model.get("family") == "gpt2"
    if maybe(rng, 0.6):
        flags.update(draw_adapter(rng, gpt2))
    elif maybe(rng, 0.4):
        block = "transformer.h" if gpt2 else "model.layers"
        flags["param-group"] = f"{block}.{rng.choice('0*')}.*.*.weight:" + rng.choice(("lr-factor=0", "lr-factor=3,weight-decay=0"))
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


def tune(rng):
    """Fine-tuning: adapters, preferences, chats, packing, mixes of files, groups of parameters; some runs resume."""
    model = draw_model(rng, ("llama", "llama", "llama", "gpt2"))
    model.pop("source", None)
    form = rng.choice(("ids", "ids", "pairs", "chats"))
    data = draw_data(rng, model, 0)
    math = draw_training(rng)
    other = {}
    if form == "ids":
        data.pop("blank_rows", None)
    else:
        model["tokenizer"] = "bytes"
        data = {"form": form, "rows": rng.randint(2, 10), "shortest": 1, "longest": rng.randint(1, 5), "seed": rng.randrange(1000)}
        math["seq-len"] = rng.choice((24, 64))
    math.update(draw_tuning(rng, model, form, math["steps"]))
    if maybe(rng, 0.25):
        math["eval-every"] = rng.randint(1, 3)
    if form != "pairs" and maybe(rng, 0.2):
        other["weights"] = rng.choice(([0.7, 0.3], [1, 5]))
    batch = math["batch-size"]
    if math["steps"] > 1 and maybe(rng, 0.35):
        other.update({"at": rng.randint(1, math["steps"] - 1), "first": draw_layout(rng, model, batch)})
        for name in ("save-every", "async-save", "keep-last"):
            other["first"].pop(name, None)
        math.pop("warmup", None)
    return {"model": model, "data": data, "math": math, "layout": draw_layout(rng, model, batch), "other": other}


def launch(rng):
    case = train(rng)
    case["other"] = {}
    case["layout"].setdefault("threads-per-rank", 1)
    case["layout"]["gemm"] = rng.choice(("mkl", "onednn"))
    if not set(case["layout"]) & {"tp", "dp", "pp"}:
        case["layout"]["tp"] = 2
    return case


def draw_prompts(rng, model):
    vocab = models.full(model)["vocab"]
    shortest = 2 if model.get("rope") == "longrope" else 1  # the frequencies change after one id
    return [[rng.randrange(vocab) for _ in range(rng.randint(shortest, 9))] for _ in range(rng.choice((1, 1, 2, 3, 5)))]


def forbid_all_beams(rng, model, math):
    """Prompts that have nearly every id of a small vocabulary, none of which may repeat: after at most three more ids every
    continuation of every beam is forbidden."""
    model["vocab"] = rng.randint(6, 30)
    vocab = models.full(model)["vocab"]
    left = rng.randint(0, 3)
    math.update({"no-repeat-ngram-size": 1, "num-beams": rng.randint(2, 5), "max-new-tokens": left + rng.randint(1, 4)})
    math.pop("num-return-sequences", None)
    if maybe(rng, 0.5):
        math["num-return-sequences"] = rng.randint(1, math["num-beams"])
    return [rng.sample(range(vocab), vocab - left) for _ in range(rng.choice((1, 1, 2)))]


def generate(rng):
    model = draw_model(rng, ("llama", "gpt2"))
    model.pop("source", None)
    math = {"max-new-tokens": rng.randint(1, 20), "dtype": rng.choice(("fp32", "fp32", "fp64"))}
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
        for name, values in {"temperature": (0.5, 1.7), "top-k": (0, 3, 10), "top-p": (0.3, 0.9),
                             "num-return-sequences": (1, 2)}.items():
            if maybe(rng, 0.4):
                math[name] = rng.choice(values)
    heads = models.full(model)["heads"]
    layout = {"tp": rng.choice([n for n in (1, 2, 3, 4) if n <= heads]), **draw_machine(rng)}
    forbids = maybe(rng, 0.06)
    other = {"prompts": forbid_all_beams(rng, model, math) if forbids else draw_prompts(rng, model)}
    if "do-sample" not in math and len(other["prompts"]) > 1 and maybe(rng, 0.4):
        other["apart"] = True
    if maybe(rng, 0.1) and layout["tp"] > 1:
        other["processes"] = True
    return {"model": model, "data": {}, "math": math, "layout": layout, "other": other}


def evaluate(rng):
    model = draw_model(rng, ("llama", "gpt2", "bert"))
    model.pop("source", None)
    if model.get("family") == "bert" and maybe(rng, 0.4):
        model["head"] = "classify"
    data = draw_data(rng, model)
    math = {"seq-len": rng.choice((8, 12, 24)), "dtype": rng.choice(("fp32", "fp32", "fp64", "bf16", "int8"))}
    heads = models.full(model)["heads"]
    layout = {"tp": rng.choice([n for n in (1, 2, 3, 4) if n <= heads]), "batch-size": rng.randint(1, 9), **draw_machine(rng)}
    other = {"processes": True} if maybe(rng, 0.1) and layout["tp"] > 1 else {}
    return {"model": model, "data": data, "math": math, "layout": layout, "other": other}


def predict(rng):
    model = draw_model(rng, ("bert",))
    model.pop("source", None)
    model["head"] = rng.choice(("classify", "mlm", "pretraining"))
    model["tokenizer"] = "words"
    texts = []
    for _ in range(rng.choice((1, 2, 4, 7))):
        words = [rng.choice(models.WORDS).lstrip("#") for _ in range(rng.randint(1, 12))]
        if model["head"] != "classify":
            words.insert(rng.randint(0, len(words)), "[MASK]")
        texts.append(" ".join(words))
    heads = models.full(model)["heads"]
    layout = {"tp": rng.choice([n for n in (1, 2, 3, 4) if n <= heads]), "batch-size": rng.randint(1, 5), **draw_machine(rng)}
    math = {"dtype": rng.choice(("fp32", "fp32", "fp64", "bf16")), "seq-len": 32, "top-k": rng.choice((1, 5, 30))}
    return {"model": pruned(model, models.DEFAULTS), "data": {}, "math": math, "layout": layout, "other": {"texts": texts}}


def convert(rng):
    model = draw_model(rng, ("llama", "gpt2", "bert"))
    model.pop("source", None)
    if model.get("family") == "bert" and maybe(rng, 0.6):
        model["head"] = rng.choice(("classify", "pretraining", "trunk"))
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
    return {"model": model, "data": {"rows": 3, "shortest": 6, "longest": 6}, "math": {}, "layout": {}, "other": {"chain": chain}}


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
        model["family"] = rng.choice(("llama", "llama", "qwen2", "qwen3", "mistral"))
        model["rope"] = rng.choice(("default", "default", "parameters", "linear", "llama3"))
        for name in ("activation", "mlp_bias", "attention_bias", "window", "experts"):
            model.pop(name, None)
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
    case["other"].pop("apart", None)
    return {**case, "model": pruned(model, models.DEFAULTS)}


def verify(rng):
    model = draw_model(rng, ("llama", "llama", "gpt2", "bert"))
    model.pop("source", None)
    model["gain"] = 0.5  # with large weights, gradients overflow fp16, and amplify rounding beyond verify's own bounds
    if model.get("family") == "bert":
        model["head"] = rng.choice(("mlm", "classify"))
    m = models.full(model)
    layout = {"tp": rng.choice([n for n in (1, 2, 2, 3, 4) if n <= m["heads"]]), "dp": rng.choice((1, 1, 2)), **draw_machine(rng)}
    if maybe(rng, 0.4):
        layout["sequence-parallel"] = True
    math = {"dtype": rng.choice(("fp32", "fp32", "bf16", "fp16", "fp64")), "seed": rng.randrange(100)}
    other = {"processes": True} if maybe(rng, 0.1) and layout["tp"] * layout["dp"] > 1 else {}
    return {"model": model, "data": {}, "math": math, "layout": layout, "other": other}


def restart(rng):
    case = resume(rng)
    other, math = case["other"], case["math"]
    math["steps"] = rng.randint(4, 8)
    other.update({"at": rng.randint(1, math["steps"] - 1), "save-every": rng.choice((1, 1, 2, 3))})
    if maybe(rng, 0.4):
        other["first"]["async-save"] = True
    if maybe(rng, 0.4) and set(other["first"]) & {"tp", "dp", "pp"}:
        other["rank"] = rng.randrange(MAX_RANKS)
        for name in ("save-every", "async-save", "keep-last"):
            case["layout"].pop(name, None)
    return case


def names(rng):
    """Files with alternative tensor names, and BERT trunks that become classifiers."""
    model = draw_model(rng, ("bert", "bert", "gpt2", "llama"))
    model.pop("source", None)
    model["names"] = rng.choice(("old", "extra"))
    other = {}
    if model.get("family") == "bert":
        model["head"] = rng.choice(("mlm", "classify", "pretraining", "trunk", "trunk"))
    data = {"rows": 5, "shortest": 4, "longest": 8, "seed": rng.randrange(1000)}
    math = {"seq-len": 8, "dtype": rng.choice(("fp32", "fp64"))}
    layout = {"tp": rng.choice([n for n in (1, 2, 3) if n <= models.full(model)["heads"]])}
    if model.get("head") == "trunk":
        math = draw_training(rng)
        layout = draw_layout(rng, model, math["batch-size"])
    return {"model": pruned(model, models.DEFAULTS), "data": data, "math": math, "layout": layout, "other": other}


# Maps a kind to (its draw function, its share of all cases).
KINDS = {"train": (train, 36), "preset": (preset, 3), "big": (big, 2), "text": (masked_text, 8), "resume": (resume, 7),
         "tune": (tune, 20),
         "launch": (launch, 3), "generate": (generate, 16), "eval": (evaluate, 8), "predict": (predict, 4),
         "convert": (convert, 5), "int4": (int4, 5), "gguf": (gguf, 5), "verify": (verify, 4), "restart": (restart, 4),
         "names": (names, 4), "extreme": (extreme.draw, 6)}


def draw(seed, index, kind=None):
    """Case `index` of a seed: the same on every machine."""
    rng = random.Random(f"{seed}:{index}")
    drawn = rng.choices(list(KINDS), [share for _, share in KINDS.values()])[0]
    kind = kind or drawn
    return {"kind": kind, **KINDS[kind][0](rng)}
