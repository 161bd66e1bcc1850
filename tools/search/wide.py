"""Makes some cases wide enough for all fast kernels, which have least sizes, and for what lies beyond whole blocks of them, and
others large enough that the threads of a rank share the work."""
import math

import models
from draws import maybe

# Kinds whose sizes nothing else decides.
KINDS = {"train", "text", "resume", "tune", "torch", "experts", "launch", "restart", "generate", "eval", "predict", "verify"}
SHARE = 0.25
WIDEST = 192
LENGTHS = (17, 33, 49, 64, 97, 120)  # around blocks of 16, 32 and 48 tokens

LARGE_KINDS = ("train", "train", "tune", "torch", "torch", "experts", "eval", "generate")
LARGEST = 4_000_000  # weights, which the search reads number by number


def widen(rng, case):
    """Widens a share of the cases: heads of at least 16 dims, products of whole and broken blocks, sequences, windows and batches
    of more than one block. Many of these are in bf16 or int8, whose products have blocks of their own."""
    if case["kind"] not in KINDS or not maybe(rng, SHARE):
        return
    model, data, flags = case["model"], case["data"], case["math"]
    heads = model.get("heads", 2)
    model["head_dim"] = rng.choice([dim for dim in (16, 16, 32, 48, 64) if dim == 16 or dim * heads <= WIDEST])
    model["inter"] = rng.choice((16, 40, 48, 80, 97, 112, 144))
    if "hidden" in model:
        model["hidden"] = rng.choice((24, 48, 80, 98))
    model["positions"] = 192
    if model.get("window"):
        model["window"] = rng.choice((2, 15, 16, 17, 31, 48, 50))
    if case["kind"] in ("train", "torch", "experts", "eval") and maybe(rng, 0.7):
        model["vocab"] = -(-max(model.get("vocab", 31), 32) // 16) * 16
    if data and data.get("form", "ids") == "ids":
        data["longest"] = rng.choice(LENGTHS)
        data["shortest"] = rng.randint(2, data["longest"]) if maybe(rng, 0.6) else data["longest"]
        flags["seq-len"] = data["longest"]
    if case["kind"] == "eval" and maybe(rng, 0.5):
        case["layout"]["batch-size"], data["rows"] = rng.choice((15, 16, 17, 33)), rng.randint(17, 40)
    if not case["other"].get("as_text"):
        lengthen(rng, case["other"].get("prompts", ()))
    if maybe(rng, 0.5) and flags["dtype"] in ("fp32", "int8") and "adapter" not in case["other"]:
        flags["dtype"] = rng.choice(("bf16", "bf16", "int8")) if case["kind"] in ("generate", "eval") else "bf16"
        model.pop("experts_per_token", None)  # rounding may decide which experts a token has


def enlarge(rng, case):
    """Gives a case the sizes of a small real model: sums of more than one block of 1024 terms, several blocks of keys, passes over
    memory that are long enough for each of several threads."""
    model, data = case["model"], case["data"]
    heads = model.get("heads", 2)
    model.update({"head_dim": rng.choice([dim for dim in (32, 40, 64, 80, 96, 128) if dim == 32 or dim * heads <= 512]),
                  "inter": rng.choice((640, 1000, 1024, 1056, 1300)), "vocab": rng.choice((500, 1003, 2048, 3001)), "positions": 512})
    model.pop("hidden", None)
    case["layout"]["threads-per-rank"] = rng.choice((1, 2, 3, 4))
    if model.get("window"):
        model["window"] = rng.choice((31, 64, 100, 200))
    while sum(math.prod(shape) for _, shape in models.shapes_of(models.full(model))) > LARGEST:
        model["vocab"], model["inter"] = 257 + model["vocab"] // 2, model["inter"] * 3 // 4
        model["head_dim"] = max(32, model["head_dim"] * 3 // 32 * 8)
    if data and data.get("form", "ids") == "ids":
        data["longest"] = rng.choice((130, 192, 257, 400))
        data["shortest"] = rng.randint(2, data["longest"]) if maybe(rng, 0.4) else data["longest"]
        data["rows"] = min(data["rows"], 6)
        case["math"]["seq-len"] = data["longest"]
    if not case["other"].get("as_text"):
        lengthen(rng, case["other"].get("prompts", ()), (130, 257, 400))


def lengthen(rng, prompts, lengths=LENGTHS):
    """Repeats the ids of some prompts in other orders."""
    for prompt in prompts:
        if maybe(rng, 0.5):
            ids, length = list(prompt), rng.choice(lengths)
            while len(prompt) < length:
                prompt += rng.sample(ids, len(ids))
