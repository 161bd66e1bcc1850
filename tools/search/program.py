"""Runs the program and checks that it ends with an answer or a one-line refusal."""
import glob
import json
import os
import re
import resource
import signal
import subprocess
import time
from dataclasses import dataclass

# The exit codes of a refusal that a user can act on: usage, shape, format, io, memory (cleave/base/error.h).
REFUSALS = (2, 3, 4, 5, 10)
BUG = 70
# A case takes a second; on a busy machine, minutes.
LIMIT_S = 300
MAX_ADDRESS_SPACE = 12 << 30


class Failure(Exception):
    """A failure of the program: `what` in one or two words (the same for the same fault), and the details."""

    def __init__(self, what, text):
        super().__init__(f"{what}: {text}")
        self.what, self.text = what, text


class Refused(Exception):
    """The program refused a combination with a proper message."""


@dataclass
class Ended:
    """How a run of the program ended."""
    words: list
    code: int
    out: str
    err: str
    seconds: float
    timed_out: bool
    peak_bytes: int
    cpu_seconds: float

    def errors(self):
        lines = [line for line in self.err.splitlines() if line.strip()]
        # Beside the cause, `cleave launch` says that it restarted before, where another rank stopped, and how to resume or why not to
        # restart.
        others = r"cleave: (warning|note|rank \d+: warning|rank \d+ stopped |restart \d+ of \d+: |resume: |not restarted: )"
        return [line for line in lines if not re.match(others, line)]

    def command(self):
        return " ".join(self.words)


def limit_memory(max_bytes):
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# What runs with --device, as commands or under `cleave launch`; and how a run says that it is the reference, which stays on the CPU.
DEVICE_COMMANDS = ("train", "generate", "eval", "predict")
REFERENCE = ["--plain-kernels", "all", "--gemm", "mkl", "--threads-per-rank", "1"]


def device_words(words, device):
    """What a command line gets so that it runs on a device."""
    program = words[words.index("--") + 1:] if "--" in words else []
    command = words[0] if words[0] != "launch" else program[1] if len(program) > 1 else ""  # "": such as launch --help
    first = words.index(REFERENCE[1]) - 1 if REFERENCE[1] in words else 0
    is_reference = words[first:first + len(REFERENCE)] == REFERENCE
    return ["--device", device] if device != "cpu" and command in DEVICE_COMMANDS and not is_reference else []


class Program:
    """The program under test; its output goes to `folder`. All but references run on `device`, whose ranks share a GPU."""
    device = "cpu"

    def __init__(self, path, folder, limit_s=LIMIT_S):
        self.path, self.folder, self.limit_s, self.count = path, folder, limit_s, 0

    def run(self, *words, limit_s=None, watch=None, max_bytes=MAX_ADDRESS_SPACE):
        """Calls `watch(process)` again and again while the program runs."""
        self.count += 1
        words = [str(word) for word in words]
        command = [self.path, *words, *device_words(words, self.device)]
        # Drivers reserve address space for all memory.
        limit = None if self.device != "cpu" else lambda: limit_memory(max_bytes)
        names = [os.path.join(self.folder, f"{self.count}.{end}") for end in ("out", "err")]
        start = time.monotonic()
        with open(names[0], "wb") as out, open(names[1], "wb") as err:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=self.folder,
                                       start_new_session=True, preexec_fn=limit,
                                       env={"CLEAVE_SHARE_GPU": "1", **os.environ})
            status, usage, timed_out = wait(process, start + (limit_s or self.limit_s), watch)
        texts = []
        for name in names:
            with open(name, "rb") as file:
                texts.append(file.read().decode(errors="replace"))
        return Ended(command, status, *texts, time.monotonic() - start, timed_out, usage.ru_maxrss * 1024,
                     usage.ru_utime + usage.ru_stime)

    def answer(self, *words, codes=(0,), limit_s=None):
        """Runs and expects an answer. Raises Refused or Failure."""
        ended = self.run(*words, limit_s=limit_s)
        check_end(ended, codes)
        return ended

    def json(self, *words):
        """The JSON lines of a run's output."""
        ended = self.answer(*words)
        try:
            return [json.loads(line) for line in ended.out.splitlines() if line.strip()]
        except ValueError:
            raise Failure("output", f"{ended.command()} printed no JSON: {ended.out[:300]}") from None


def starved_seconds(session):
    """How long the processes of a session waited for a CPU: the longest wait of one of their threads."""
    longest = 0
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            if os.getsid(int(os.path.basename(folder))) != session:
                continue
            for path in glob.glob(folder + "/task/*/schedstat"):
                with open(path, encoding="ascii") as file:
                    longest = max(longest, int(file.read().split()[1]) * 1e-9)
        except OSError:  # it has ended meanwhile
            continue
    return longest


def wait(process, deadline, watch=None):
    """(exit code or -signal; resource usage; whether it was killed at the deadline).

    Time in which the program waited for a CPU, or was stopped together with this one, does not count."""
    timed_out, pause, last, stopped = False, 0.002, time.monotonic(), 0
    try:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            now = time.monotonic()
            stopped += max(0, now - last - 1)  # a round takes at most a tenth of a second
            last = now
            if (not timed_out and now > deadline + stopped and now > deadline + stopped + starved_seconds(process.pid)):
                timed_out = True
                os.killpg(process.pid, signal.SIGKILL)
            if watch:
                watch(process)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.002 if watch else 0.05)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        os.wait4(process.pid, 0)
        process.returncode = -signal.SIGKILL
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage, timed_out


def last_lines(text, count=3):
    return " | ".join(text.strip().splitlines()[-count:])[:600]


OVERFLOWED = "all steps overflowed fp16"


def check_end(ended, codes=(0,)):
    """Raises Refused for a proper refusal, and Failure for any other end without an answer."""
    if ended.timed_out:
        raise Failure("hang", f"no end after {ended.seconds:.0f} s: {ended.command()}")
    if ended.code in codes:
        return
    if ended.code == 9 and any("steps overflowed fp16" in line for line in ended.errors()):
        raise Refused(OVERFLOWED)
    shown = f"{ended.command()}\n    exit {ended.code}: {last_lines(ended.err)}"
    if ended.code < 0 or ended.code > 127:
        raise Failure("signal", shown)
    if ended.code not in REFUSALS:
        raise Failure(f"exit {ended.code}", shown)
    errors = ended.errors()
    if len(errors) != 1 or not errors[0].startswith("cleave: "):
        raise Failure("refusal", f"not one clear line: {shown}")
    if re.search(r"\bbug\b|c10|github\.com|InferenceMode|0x[0-9a-f]{6}|what\(\)|\bat ''|: ''|cleave: :", errors[0]):
        raise Failure("refusal", f"an unclear line: {shown}")
    raise Refused(errors[0].removeprefix("cleave: "))


def reason(text):
    """A refusal without its numbers and names, to count similar ones."""
    text = re.sub(r"/\S+", "PATH", text)
    return re.sub(r"'[^']*'|\d[\d.e+-]*", "N", text)[:110]
