"""Extreme values of flags: each must be refused in one clear line, or work within seconds and with little memory."""
import os
import re
import signal
import time

from program import Failure, Refused, check_end

# Flags whose values start programs on other hosts, or choose a model of gigabytes.
UNSEARCHED = {"help", "hosts", "remote-shell", "shape"}
VALUES = ("0", "-1", "1", "3", "100000", "2147483647", "2147483648", "4294967296", "9223372036854775807",
          "9223372036854775808", "-9223372036854775808", "18446744073709551615", "18446744073709551616", "1e-40", "1e-320",
          "1e40", "1e308", "1e309", "-1e308", "nan", "inf", "-inf", "0.5", "0x10", "1e3", "", " ", "1 ", "+1", "-0", "1,2",
          "a" * 5000, "%s%n", "\u0661")
# Paths below the folder of the case, and what the files contain; None: a folder.
FILES = {"empty": b"", "object.json": b"{}", "number.json": b"1", "list.jsonl": b"[1]\n", "open.json": b'{"a": [',
         "garbage": bytes(range(256)) * 3, "garbage.gguf": b"GGUF\3\0\0\0" + bytes(range(64)), "zeros.safetensors": bytes(64),
         "folder": None}
PATHS = (*FILES, "", ".", "missing", "missing/file", "/dev/null", "empty/file", "a" * 300, "%s%n", "\u0661")
TINY = {"layers": 1, "vocab": 40}
NUMBER = re.compile(r"N|X|S|RATE|NORM|STEPS?|ID|P|DECAY|RANK|COUNT|0\|1|B1,B2|SECONDS|[0-9,]+")
# Flags that may ask for a run of any length. It must end on SIGTERM.
LENGTHS = {"steps", "epochs", "warmup", "repeats", "seconds", "fuzz", "max-new-tokens", "new-tokens", "grace"}
# Sizes of a benchmark, which may need any time and memory.
BENCH_SIZES = {"batch-size", "seq-len", "prompt-len", "world", "bytes"}
MAX_PEAK_BYTES, MAX_CPU_S, LIMIT_S = 3 << 30, 25, 150
MAX_ADDRESS_SPACE = 6 << 30
BENCH_MAX_CPU_S = 60  # its smallest model has 110 million weights
LONG_RUN_S, END_S = 15, 60

# Arguments of each command, in which {} is the model, and flags with usual values. "" is the argument without a flag.
USUAL = {
    "train": (["--model", "{}", "--data", "{}/../data.jsonl"], {"out": "out", "steps": 1, "seq-len": 4, "batch-size": 2}),
    "eval": (["--model", "{}", "--data", "{}/../data.jsonl"], {"seq-len": 4}),
    "generate": (["--model", "{}"], {"prompt-ids": "1,2,3", "max-new-tokens": 4}),
    "predict": (["--model", "{}"], {"text": "a film"}),
    "plan": (["--model", "{}"], {}),
    "verify": (["--model", "{}"], {}),
    "convert": (["--from", "{}"], {"to": "converted"}),
    "launch": ([], {"n": 1}),
    "bench train": ([], {"shape": "bert-base", "steps": 1, "warmup": 0, "batch-size": 1, "seq-len": 4, "tp": 1}),
    "bench generate": ([], {"batch-size": 1, "prompt-len": 4, "new-tokens": 2, "repeats": 1, "tp": 1}),
    "bench collectives": ([], {"bytes": "1KiB", "seconds": 0.01}),
    "tokenize": ([], {"tokenizer": "bytes", "text": "a film"}),
    "inspect": ([], {"": "{}"}), "report": ([], {"": "{}"}), "diff": (["{}"], {"": "{}"}), "doctor": ([], {}),
    "lesson": ([], {"": "tp"}), "completion": ([], {"": "bash"}),
}
SHARES = {"train": 4, "generate": 4, "eval": 2, "predict": 2, "plan": 3, "verify": 2, "convert": 3, "launch": 2, "tokenize": 1,
          "inspect": 1, "report": 1, "diff": 1, "doctor": 1, "lesson": 0.3, "completion": 0.3, "bench train": 1,
          "bench generate": 1, "bench collectives": 2}


def draw(rng):
    command = rng.choices(list(SHARES), SHARES.values())[0]
    # The program's help lists the flags; the case stores only relative positions in the lists of flags and their values.
    flags = [[rng.random(), rng.random()] for _ in range(rng.choice((1, 1, 1, 2)))]
    model = dict(TINY, family=rng.choice(("llama", "gpt2"))) if command != "predict" else dict(
        TINY, family="bert", head="classify", tokenizer="words")
    return {"model": model, "data": {"rows": 4}, "math": {}, "layout": {}, "other": {"command": command, "flags": flags}}


def values_of(metavar):
    """Extreme values for what the help shows after a flag; True is the flag without a value."""
    if not metavar:
        return (True, True, "", "0", "true", "a" * 5000)
    if re.search(r"\b(DIR|FILE|PATH)", metavar):
        return PATHS
    named = metavar.split("|") if re.fullmatch(r"[a-z0-9_-]+(\|[a-z0-9_-]+)+", metavar) else []
    return (*named, *VALUES)


def known_flags(command, help_text):
    """The flags of a command, from its help: name to the form of its value. Numbers come first."""
    found = re.findall(r"^  \[?--?([a-z-]+)\]?(?: (\S+))?(?:  .*)?$", help_text, re.MULTILINE)
    flags = {name: metavar for name, metavar in found if name not in UNSEARCHED | {"h"}}
    if "" in USUAL[command][1]:
        flags[""] = "PATH"
    return dict(sorted(flags.items(), key=lambda each: (not NUMBER.fullmatch(each[1]), each[0])))


def chosen_flags(command, help_text, drawn):
    """The drawn flags and their values: half of them numbers. A replayed case may have names and values."""
    known = known_flags(command, help_text)
    numbers = [name for name, metavar in known.items() if NUMBER.fullmatch(metavar)]
    chosen = {}
    for at, value in drawn:
        name = at
        if not isinstance(at, str):
            names = numbers if at < 0.5 and numbers else list(known)
            name = names[int(2 * at % 1 * len(names))]
        values = values_of(known[name])
        chosen[name] = value if isinstance(value, (str, bool)) else values[int(value * len(values))]
    return chosen


def words_of(flags):
    """Arguments of flags; those without a flag and the program of `launch` come last."""
    words = []
    for name, value in flags.items():
        if name == "n":
            words += ["-n", str(value)]
        elif name:
            words.append(f"--{name}" if value is True else f"--{name}={value}")
    return words + ([flags[""]] if "" in flags else [])


class Stopper:
    """Sends SIGTERM to a program that runs for LONG_RUN_S, as a user may do who asked for too many steps."""

    def __init__(self):
        self.start, self.stopped_at = time.monotonic(), None

    def __call__(self, process):
        """Called until the process has ended."""
        if self.stopped_at is None and time.monotonic() - self.start > LONG_RUN_S:
            self.stopped_at = time.monotonic()
            os.kill(process.pid, signal.SIGTERM)


def write_files(folder):
    for name, content in FILES.items():
        path = os.path.join(folder, name)
        if content is None:
            os.makedirs(path)
            continue
        with open(path, "wb") as file:
            file.write(content)


def check(work):
    """Every value of a flag must lead to an answer or a clear refusal, soon and with little memory."""
    other = work.case["other"]
    command = other["command"]
    asked, usual = USUAL[command]
    write_files(work.folder)
    if any("data.jsonl" in word for word in asked):
        _ = work.inputs.data_path  # writes it
    chosen = chosen_flags(command, work.program.answer(*command.split(), "--help").out, other["flags"])
    other["flags"] = [list(each) for each in chosen.items()]
    words = [*command.split(), *asked, *words_of({**usual, **chosen}), *(["--", "/bin/true"] if command == "launch" else [])]
    is_large = command.startswith("bench") and not BENCH_SIZES.isdisjoint(chosen)
    stopper = Stopper() if is_large or not LENGTHS.isdisjoint(chosen) else None
    ended = work.program.run(*(word.replace("{}", work.inputs.model_path) for word in words), limit_s=LIMIT_S, watch=stopper,
                             max_bytes=MAX_ADDRESS_SPACE)
    if ended.code == 7 and "timeout" in chosen and len(ended.errors()) == 1:
        raise Refused(ended.errors()[0])  # a rank waited longer than the drawn time
    if ended.peak_bytes > MAX_PEAK_BYTES and not is_large:
        raise Failure("memory", f"{ended.peak_bytes >> 20} MiB: {ended.command()}")
    judge(ended, stopper, command)


def judge(ended, stopper, command):
    if stopper and stopper.stopped_at:
        late = time.monotonic() - stopper.stopped_at
        if ended.timed_out or late > END_S or ended.code not in (0, 128 + signal.SIGTERM, -signal.SIGTERM):
            raise Failure("signal", f"exit {ended.code} {late:.0f} s after SIGTERM: {ended.command()}")
        return
    if ended.cpu_seconds > (BENCH_MAX_CPU_S if command.startswith("bench") else MAX_CPU_S):
        raise Failure("hang", f"{ended.cpu_seconds:.0f} s of CPU time: {ended.command()}")
    if ended.code == 9 and len(ended.errors()) == 1 and not ended.timed_out and command != "verify":
        raise Refused(ended.errors()[0])  # an overflow, which is reported properly
    check_end(ended, codes=(0, 1) if command == "diff" else (0,))
