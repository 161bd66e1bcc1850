"""Extreme values of flags: each must be refused in one clear line, or work within seconds and with little memory."""
import re

# Flags whose values the program cannot check, or that cause a long run or wait.
UNSEARCHED = {"grace", "max-restarts", "n", "timeout", "seconds", "memory", "format"}
VALUES = ("0", "-1", "1", "3", "100000", "2147483647", "2147483648", "4294967296", "9223372036854775807",
          "9223372036854775808", "-9223372036854775808", "18446744073709551615", "18446744073709551616", "1e-40", "1e-320",
          "1e40", "1e308", "1e309", "-1e308", "nan", "inf", "-inf", "0.5", "0x10", "1e3", "", " ", "1 ", "+1", "-0", "1,2",
          "a" * 5000, "%s%n", "\u0661")
TINY = {"layers": 1, "vocab": 40}


def draw(rng):
    command = rng.choice(("train", "train", "generate", "generate", "eval", "predict", "plan"))
    count = rng.choice((1, 1, 1, 2))
    # The program's help lists the flags; the case stores only their relative positions in the list.
    flags = [[rng.random(), rng.choice(VALUES)] for _ in range(count)]
    model = dict(TINY, family=rng.choice(("llama", "gpt2"))) if command != "predict" else dict(
        TINY, family="bert", head="classify", tokenizer="words")
    return {"model": model, "data": {"rows": 4}, "math": {}, "layout": {}, "other": {"command": command, "flags": flags}}


def numeric_flags(help_text):
    """Numeric flags of a command, from its help."""
    found = re.findall(r"^  --([a-z-]+) (N|X|RATE|NORM|STEPS|ID|P|0\|1|B1,B2|SECONDS|[0-9,]+)\b", help_text, re.MULTILINE)
    return sorted({name for name, _ in found} - UNSEARCHED)
