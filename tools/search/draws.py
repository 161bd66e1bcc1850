"""Random parts of cases: models, data, layouts and flags. cases.py combines them."""
import models

KERNELS = ("attention", "norm", "gate", "rotary", "loss", "few-rows", "panels", "adam", "random")
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
    if family == "bert" and maybe(rng, 0.5):
        family = rng.choice(("roberta", "distilbert"))
    model["family"] = family
    heads = model["heads"]
    if family in models.DECODERS:
        model["kv_heads"] = rng.choice([k for k in range(1, heads + 1) if heads % k == 0])
        model["attention_bias"], model["mlp_bias"] = maybe(rng, 0.25), maybe(rng, 0.25)
        scaled = ("longrope",) if family == "phi3" else ("linear", "llama3", "yarn", "longrope")
        if family in ("gemma3_text", "olmo3"):
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
    if family == "imdb_bert" or family in models.ENCODERS:
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


def classifier_of(rng, model):
    """Gives the model a head for a class, for several classes, or for one number."""
    model["head"] = "classify"
    kind = rng.choice(("class", "class", "classes", "number", "number"))
    if kind == "classes":
        model["multilabel"] = True
    elif kind == "number":
        model["classes"] = 1


def text_for(rng, model):
    """Gives the model a tokenizer, so that it can read text, and returns a form of text for it."""
    is_encoder = model.get("family") == "imdb_bert" or model.get("family") in models.ENCODERS
    model["tokenizer"] = "words" if is_encoder and model.get("source", "folder") == "folder" else "bytes"
    classifies = model.get("family") == "imdb_bert" or model.get("head") == "classify" or (is_encoder and model.get("head") == "trunk")
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
    return model.get("family") in models.ENCODERS and model.get("head", "mlm") == "mlm" and model.get("source", "folder") == "config"


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
    if maybe(rng, 0.35):
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
    if maybe(rng, 0.04):
        flags.update(rng.choice(({"timeout": 300}, {"quiet": True}, {"transport": "tcp"}, {"fast-sums": True})))
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
    if dp > 1 and m["family"] in models.WITH_EXPERTS and maybe(rng, 0.7):
        flags["ep"] = rng.choice([n for n in range(2, dp + 1) if dp % n == 0])
    if maybe(rng, 0.35):
        flags["recompute"] = rng.choice(("full", "selective"))
    if maybe(rng, 0.4):
        flags["micro-batch-size"] = rng.randint(1, max(1, -(-batch // dp)))
    if maybe(rng, 0.2):
        flags["save-every"] = rng.randint(1, 3)
        flags["async-save"] = maybe(rng, 0.6)
        if maybe(rng, 0.3):
            flags["keep-last"] = 1
    for name, value in {"log": "tensorboard", "over-commit": True}.items():
        if maybe(rng, 0.05):
            flags[name] = value
    return {key: value for key, value in flags.items() if value is not False}


def draw_watched(rng, math, layout):
    """Flags of a layout that depend on the flags of training."""
    # The bounds of fp16 do not allow its roundings.
    share = {"bf16": 0.4, "fp16": 0}.get(math["dtype"], 0.08)
    if layout.get("dp", 1) > 1 and maybe(rng, share):
        layout["reduce-dtype"] = "bf16"
    if "steps" in math and maybe(rng, 0.04):
        layout["record-step"] = rng.randint(1, math["steps"])
    return layout


def draw_prompts(rng, model):
    vocab = models.full(model)["vocab"]
    shortest = 2 if model.get("rope") == "longrope" else 1  # the frequencies change after one id
    longest = rng.choice((9, 9, 9, 30))  # beyond every window
    return [[rng.randrange(vocab) for _ in range(rng.randint(shortest, longest))] for _ in range(rng.choice((1, 1, 2, 3, 5)))]


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


def pass_short_lengths(rng, model, other):
    """A prompt that begins with the short factors of longrope; a generation often passes their length."""
    model["short_length"] = rng.randint(4, 16)
    other["prompts"] = [other["prompts"][0][:rng.choice((model["short_length"], 60))]]


def draw_texts_of_prompts(rng, model, other):
    """Prompts whose ids are bytes of text, which the parallel side gets as text."""
    model["tokenizer"] = "bytes"
    other["prompts"] = [[rng.choice((32, rng.randint(33, 126))) for _ in prompt[:-1]] + [rng.randint(33, 126)]
                        for prompt in other["prompts"]]
    other["as_text"] = True


def draw_adapter(rng, family):
    flags = {"lora": rng.choice((1, 2, 3, 4))}
    targets = {"gpt2": ("all-linear", "c_attn,c_proj", "c_fc"), "distilbert": ("all-linear", "q_lin,v_lin", "ffn.lin2"),
               **dict.fromkeys(("bert", "roberta"), ("all-linear", "query,value", "output.dense"))}
    targets = targets.get(family, ("all-linear", "q_proj,v_proj", "o_proj"))
    for name, values in {"lora-alpha": (1, 3.5), "lora-targets": targets, "lora-dropout": (0.2,)}.items():
        if maybe(rng, 0.35):
            flags[name] = rng.choice(values)
    for name, value in {"rslora": True, "dora": True, "lora-base": rng.choice(("int8", "nf4"))}.items():
        if maybe(rng, 0.2):
            flags[name] = value
    return flags


def draw_saved_adapter(rng, model):
    """A PEFT adapter that adapters.py writes. The model's file has its own dtype no more: merged weights are rounded to fp32."""
    model.pop("file_dtype", None)
    adapter = {"rank": rng.choice((1, 2, 3, 4, 5)), "alpha": rng.choice((1, 4, 7.5)), "seed": rng.randrange(1000)}
    if maybe(rng, 0.5):
        adapter["share"] = 0.5  # of the linear layers of the blocks, by their names
    for name in ("rslora", "dora"):
        if maybe(rng, 0.4):
            adapter[name] = True
    return adapter


def draw_config(rng):
    """Some cases give the flags of a layout in a file."""
    return {"config": True} if maybe(rng, 0.06) else {}


def draw_plan(rng, layout, model):
    """Some cases shard the model by a plan of their own."""
    takes_plan = "sequence-parallel" not in layout and models.full(model)["family"] in models.WITH_PLANS
    return {"plan": True} if layout.get("tp", 1) > 1 and takes_plan and maybe(rng, 0.08) else {}
