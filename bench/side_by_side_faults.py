#!/usr/bin/env python3
"""Injects the same faults into PyTorch and Cleave, in one run on one machine, and prints a table.

usage: PYTHON bench/side_by_side_faults.py [--build build/release] [--write docs/reliability.md] [ROW ...]

PYTHON must have torch; rows about files also need safetensors, tokenizers and transformers, and are listed as left out
without them. --write puts the table between the markers of the file and draws the times of its rows on failed ranks as
FILE-faults.svg beside it. The script kills only processes that it started, by pid.
"""
import argparse
import importlib.util
import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from plot import Plot, drawn, metric

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- side by side: begin -->", "<!-- side by side: end -->"
ROWS = {}


def row(name, what):
    def add(function):
        ROWS[name] = (what, function)
        return function
    return add


# Running jobs.

class Job:
    """A launcher with its ranks and output."""

    def __init__(self, words, **environment):
        self.folder = tempfile.TemporaryDirectory()
        self.errors = open(Path(self.folder.name) / "stderr", "w+b")
        self.out = open(Path(self.folder.name) / "stdout", "w+b")
        self.process = subprocess.Popen([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=self.out,
                                        stderr=self.errors, env={**os.environ, "OMP_NUM_THREADS": "1", **environment})

    def ranks(self):
        found = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            found += [int(pid) for pid in (task / "children").read_text().split()]
        return sorted(found)

    def wait(self, seconds):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            kill_all([*self.ranks(), self.process.pid])
            return "none (ended by hand)"
        return code if code >= 0 else 128 - code

    def text(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def printed(self):
        self.out.seek(0)
        return self.out.read().decode(errors="replace")


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone_after(pids, seconds):
    """Seconds until no process is alive; None if some still are."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if not any(is_alive(pid) for pid in pids):
            return time.monotonic() - begin
        time.sleep(0.001)
    return None


def kill_all(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def until(condition, seconds=60):
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds:
            raise RuntimeError("the job did not start to work")
        time.sleep(0.01)


def run_python(code, *arguments, limit=None, timeout=900):
    def set_limit():
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True,
                          text=True, timeout=timeout, preexec_fn=set_limit, env={**os.environ, "OMP_NUM_THREADS": "1"})


TORCH_LOOP = """
    import datetime, os, sys, torch, torch.distributed as dist
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(sys.argv[1])))
    open(sys.argv[2] + "/" + os.environ["RANK"], "w").write(str(os.getpid()))
    x = torch.ones(1000)
    while True: dist.all_reduce(x); x.fill_(1)
"""


def torch_job(folder, timeout_s=1800):
    script = folder / "loop.py"
    script.write_text(textwrap.dedent(TORCH_LOOP))
    job = Job([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, script, timeout_s,
               folder])
    until(lambda: (folder / "0").exists() and (folder / "1").exists(), 120)
    time.sleep(1)
    return job, [int((folder / str(rank)).read_text()) for rank in range(2)]


def train_words(build, out, *more):
    return [build / "cleave", "train", "--data", ROOT / "LICENSE", "--out", out, "--seq-len", 32, "--batch-size", 4,
            "--threads-per-rank", 1, "--gemm", "mkl", *more]


def cleave_job(build, out, *more):
    job = Job([build / "cleave", "launch", "-n", 2, "--", *train_words(build, out, "--tp", 2, "--steps", 10**6, *more)])
    metrics = Path(out) / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3)
    return job, job.ranks()


def seconds(value):
    return "-" if value is None else f"{value:.2f} s" if value >= 0.1 else f"{value * 1e3:.0f} ms"


def lines(text):
    return len([line for line in text.splitlines() if line.strip()])


def first(text, pattern, fallback=""):
    found = re.search(pattern, text)
    return found.group(0) if found else fallback


# Rows: each returns the results of PyTorch and of Cleave.

@row("M1", "a rank is killed (`kill -9`)")
def killed_rank(build, folder):
    def strike(job, pids):
        begin = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        code = job.wait(120)
        took = time.monotonic() - begin
        gone_after(pids, 60)
        return f"all stopped after {seconds(took)}, exit {code}, {lines(job.text())} lines on stderr"
    theirs = strike(*torch_job(folder))
    job, pids = cleave_job(build, folder / "run")
    ours = strike(job, pids)
    return theirs, ours + ", naming " + first(job.text(), r"rank 1 \(pid \d+\) was killed by signal 9", "?")


@row("M3", "the launcher is killed (`kill -9`)")
def killed_launcher(build, folder):
    def strike(job, pids):
        job.process.kill()
        took = gone_after(pids, 15)
        kill_all(pids)
        return "ranks still compute after 15 s" if took is None else f"no rank left after {seconds(took)}"
    return strike(*torch_job(folder)), strike(*cleave_job(build, folder / "run"))


@row("M5", "a rank stands still (SIGSTOP), limit 6 s")
def stopped_rank(build, folder):
    def strike(job, pids):
        begin = time.monotonic()
        os.kill(pids[1], signal.SIGSTOP)
        code = job.wait(120)
        took = time.monotonic() - begin
        kill_all(pids)
        return f"over after {seconds(took)}, exit {code}", job.text()
    theirs, text = strike(*torch_job(folder, 6))
    theirs += "; says \"" + first(text, r"Timed out waiting \d+ms for \w+ operation to complete", "?") + "\""
    ours, text = strike(*cleave_job(build, folder / "run", "--timeout", 6))
    ours += "; says \"" + first(text, r"for rank 1; rank 1 is [^;]*", "?") + "\""
    return theirs, ours + (" and writes a flight log" if "flight log: " in text else "")


@row("M7", "`all_reduce` of fp32 on one rank, int32 on the other")
def mixed_dtypes(build, folder):
    script = folder / "mixed.py"
    script.write_text(textwrap.dedent("""
        import sys, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        r = dist.get_rank()
        x = torch.ones(4, dtype=torch.float32 if r == 0 else torch.int32)
        dist.all_reduce(x)
        sys.stdout.write(f"rank {r} has {x[0].item()}, "); sys.stdout.flush()
        dist.destroy_process_group()
    """))
    job = Job([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, script])
    code = job.wait(120)
    values = ", ".join(sorted(re.findall(r"rank \d has [-+.e\d]+", job.printed())))
    theirs = f"exit {code}; {values} (1 + 1 was asked for)"
    job = Job([build / "cleave", "launch", "-n", 2, "--", build / "tests/comm_test"], CLEAVE_TEST_ROLE="mixes_dtypes")
    code = job.wait(60)
    return theirs, f"exit {code}: \"" + first(job.text(), r"ranks 0 and 1 differ.*?(?=; they must)", "?") + "\""


DCP_SAVE = """
    import sys, torch, torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemWriter
    big = torch.full((1 << 18,), float(sys.argv[2])); small = torch.full((1 << 10,), float(sys.argv[2]))
    state = {"big": big, "small": small} if sys.argv[4] == "big" else {"a": big.clone(), "b": big.clone()}
    dcp.save(state, storage_writer=FileSystemWriter(sys.argv[1], thread_count=int(sys.argv[3]), overwrite=True))
    print("saved")
"""
DCP_LOAD = """
    import sys, torch, torch.distributed.checkpoint as dcp
    big = torch.zeros(1 << 18); small = torch.zeros(1 << 10)
    state = {"big": big, "small": small} if sys.argv[2] == "big" else {"a": big.clone(), "b": big.clone()}
    dcp.load(state, checkpoint_id=sys.argv[1])
    print("loaded", [t[0].item() for t in state.values()])
"""


def dcp_story(folder, threads, kind, limit):
    run_python(DCP_SAVE, folder, 1, threads, kind)
    saved = run_python(DCP_SAVE, folder, 2, threads, kind, limit=limit)
    loaded = run_python(DCP_LOAD, folder, kind)
    did = "save reports success" if "saved" in saved.stdout else "save raises"
    return did, "loaded" in loaded.stdout


def cleave_save_story(build, out, *more):
    """Saves a checkpoint at step 4; the next save exceeds a limit on file sizes."""
    subprocess.run([str(w) for w in train_words(build, out, "--steps", 4, "--warmup", 1, *more)], check=True,
                   capture_output=True)
    before = (Path(out) / "latest").read_text().strip()
    words = [str(w) for w in train_words(build, out, "--steps", 8, "--warmup", 1, "--resume", *more)]
    ran = subprocess.run(["/bin/bash", "-c", 'ulimit -S -f 512; exec "$@"', "-", *words], capture_output=True, text=True)
    after = (Path(out) / "latest").read_text().strip()
    checked = subprocess.run([str(build / "cleave"), "diff", f"{out}/{before}", f"{out}/{after}"], capture_output=True)
    intact = "still intact" if before == after and checked.returncode == 0 else "damaged"
    return f"exit {ran.returncode}: \"" + ran.stderr.strip().split("\n")[0].replace(str(out), "RUN").replace(
        "cleave: ", "", 1).split(";")[0] + f"\"; the checkpoint before is {intact}"


@row("M13", "a save on a full disk (here a file-size limit of 0.5 MiB), over a good checkpoint")
def full_disk(build, folder):
    did, loads = dcp_story(folder / "dcp", 1, "big", 1 << 19)
    return (f"{did}; the good checkpoint {'still loads' if loads else 'is destroyed: it does not load'}",
            cleave_save_story(build, folder / "run"))


@row("M14", "the same in a writer thread")
def full_disk_in_a_thread(build, folder):
    silent = 0
    for attempt in range(4):
        did, loads = dcp_story(folder / f"dcp{attempt}", 2, "big", 1 << 19)
        silent += did == "save reports success" and not loads
    theirs = f"{silent} of 4 saves report success and do not load"
    return theirs, cleave_save_story(build, folder / "run", "--async-save", "--save-every", 1)


def tokenizer_files():
    """tokenizer.json files that a loader should refuse, and that must not crash it."""
    def base(**changes):
        model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
        model.update(changes.pop("model", {}))
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model, **changes}
    padding = {"strategy": {"Fixed": 4}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "a"}
    yield "a merge of tokens longer than all others", base(model={"continuing_subword_prefix": "#########"})
    yield "a FixedLength pre-tokenizer of 0", base(pre_tokenizer={"type": "FixedLength", "length": 0})
    yield "truncation with a stride as long as its length", base(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 2})
    yield "padding to a multiple of 0", base(padding={**padding, "pad_to_multiple_of": 0})
    yield "an id of 4294967295", base(model={"vocab": {"a": 0, "b": 1, "ab": 4294967295}})
    yield "two tokens with one id", base(model={"vocab": {"a": 0, "b": 0, "ab": 2}})


@row("M17", "hostile tokenizer.json files, loaded and used")
def hostile_tokenizers(build, folder):
    panics, took, refused = [], 0, 0
    count = 0
    for name, content in tokenizer_files():
        count += 1
        place = folder / f"tokenizer{count}"
        place.mkdir()
        (place / "tokenizer.json").write_text(json.dumps(content))
        theirs = run_python("""
            import sys
            from tokenizers import Tokenizer
            try:
                Tokenizer.from_file(sys.argv[1]).encode("abababab").ids
                print("taken")
            except BaseException as e:
                print(type(e).__name__)
        """, place / "tokenizer.json")
        verdict = theirs.stdout.strip().split("\n")[-1] if theirs.returncode == 0 else "abort"
        if verdict in ("PanicException", "abort"):
            panics.append(name)
        took += verdict == "taken"
        ours = subprocess.run([str(build / "cleave"), "tokenize", "--tokenizer", str(place), "--text", "abababab"],
                              capture_output=True, text=True, timeout=20)
        refused += ours.returncode in (3, 4)
        ok = ours.returncode in (0, 3, 4)
        if not ok:
            return "", f"exit {ours.returncode} for {name}: {ours.stderr}"
    return (f"{len(panics)} of {count} panic ({'; '.join(panics)}), {took} are taken",
            f"0 of {count} crash, {refused} are refused")


@row("M18", "an index file that names `../x/secret.safetensors`")
def index_traversal(build, folder):
    code = """
        import sys, torch
        from transformers import LlamaConfig, LlamaForCausalLM
        config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                             num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32)
        LlamaForCausalLM(config).save_pretrained(sys.argv[1])
    """
    model, outside = folder / "model", folder / "x"
    ran = run_python(code, model)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr[-500:])
    outside.mkdir()
    (model / "model.safetensors").rename(outside / "secret.safetensors")
    names = run_python("""
        import sys, json
        from safetensors import safe_open
        with safe_open(sys.argv[1], "pt") as f: print(json.dumps(list(f.keys())))
    """, outside / "secret.safetensors")
    weight_map = {name: "../x/secret.safetensors" for name in json.loads(names.stdout)}
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    theirs = run_python("""
        import sys
        from transformers import AutoModelForCausalLM
        AutoModelForCausalLM.from_pretrained(sys.argv[1])
        print("taken")
    """, model)
    ours = subprocess.run([str(build / "cleave"), "inspect", str(model)], capture_output=True, text=True)
    return ("accepted: a file outside of the model's folder is read" if "taken" in theirs.stdout else "refused",
            f"refused, exit {ours.returncode}" if ours.returncode == 4 else f"exit {ours.returncode}")


class Call:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@row("M20", "a checkpoint with code in a pickle")
def malicious_code(build, folder):
    place, mark = folder / "dcp", folder / "ran"
    run_python(DCP_SAVE, place, 1, 1, "big")
    (place / ".metadata").write_bytes(pickle.dumps(Call(mark)))
    run_python(DCP_LOAD, place, "big")
    theirs = "the code ran on `dcp.load`" if mark.exists() else "the code did not run"
    mark.unlink(missing_ok=True)
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type":"llama","architectures":["LlamaForCausalLM"]}')
    run_python("""
        import io, pickle, sys, zipfile, os
        class Call:
            def __reduce__(self): return os.system, ("touch " + sys.argv[2],)
        with zipfile.ZipFile(sys.argv[1], "w") as z:
            z.writestr("archive/data.pkl", pickle.dumps({"w": Call()}, 2)); z.writestr("archive/version", "3\\n")
    """, model / "pytorch_model.bin", mark)
    ours = subprocess.run([str(build / "cleave"), "inspect", str(model / "pytorch_model.bin")], capture_output=True,
                          text=True)
    verdict = "the code ran" if mark.exists() else "nothing ran"
    return theirs, (f"own checkpoints hold no pickle; of a .bin with such code {verdict}, exit {ours.returncode}: \"" +
                    first(ours.stderr, r"names? .*|.*posix.*|.*system.*", ours.stderr.strip())[-110:].strip() + "\"")


def needs(name):
    wanted = {"M17": ["tokenizers"], "M18": ["transformers", "safetensors"]}.get(name, [])
    return [module for module in wanted if importlib.util.find_spec(module) is None]


def table(build, wanted):
    import torch
    out = [f"One run of `bench/side_by_side_faults.py`, PyTorch {torch.__version__.split('+')[0]}, "
           f"{os.cpu_count()} cores:", "", "| | situation | PyTorch | Cleave |", "|---|---|---|---|"]
    left_out = []
    for name, (what, function) in ROWS.items():
        if wanted and name not in wanted:
            continue
        if needs(name):
            left_out.append(f"{name} (no {', '.join(needs(name))} in this Python)")
            continue
        with tempfile.TemporaryDirectory() as folder:
            theirs, ours = function(build, Path(folder))
        out.append(f"| {name} | {what} | {theirs} | {ours} |".replace("\n", " "))
        print(out[-1], flush=True)
    out += ["", "Left out: " + ("; ".join(left_out) if left_out else "nothing") + "."]
    return "\n".join(out)


def seconds_in(cell):
    """The time of "all stopped after 1.37 s" or "after 25 ms"; of ranks that never stopped, how long they were watched."""
    number, unit = re.search(r"after ([\d.]+) (s|ms)\b", cell).groups()
    return float(number) / (1000 if unit == "ms" else 1)


def chart(text):
    """An SVG chart of the table's rows on killed and stopped processes."""
    results = []
    for name in ("M1", "M3", "M5"):
        found = re.search(rf"^\| {name} \| (.*?) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
        if found is None:
            continue
        what, theirs, ours = found.groups()
        note = "; PyTorch's did not stop while watched" if "still compute" in theirs else ""
        values = {"Cleave": [seconds_in(ours)], "PyTorch": [seconds_in(theirs)]}
        results.append({"row": what.replace("`", "") + note,
                        "values": {program: {"seconds": numbers} for program, numbers in values.items()}})
    plot = Plot("Seconds until no rank runs (shorter is better)", lambda row: [[metric(row, "seconds", "")]])
    return drawn(plot, results)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=ROOT / "build/release", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("rows", nargs="*", help="M1 M3 ... (default: all)")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit("this Python has no torch; run the script with one that has")
    unknown = set(options.rows) - set(ROWS)
    if unknown:
        sys.exit(f"unknown rows {sorted(unknown)}; known: {' '.join(ROWS)}")
    text = table(options.build.resolve(), options.rows)
    if options.write:
        before, rest = options.write.read_text().split(BEGIN)
        options.write.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.split(END)[1])
        options.write.with_name(f"{options.write.stem}-faults.svg").write_text(chart(text))


if __name__ == "__main__":
    main()
