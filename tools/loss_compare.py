#!/usr/bin/env python3
"""Runs the same training with two commits and compares the losses of every step to the last digit.

usage: loss_compare.py [--assert-equal] BEFORE [AFTER] [-- FLAGS]

BEFORE and AFTER are commits or programs (a file `cleave`); AFTER defaults to this tree's build/cleave. A commit is unpacked
below build/compare and built there once, with this tree's libtorch (so run `./run build` first). FLAGS are flags of
`cleave train` except --out; the default trains a small Llama on two ranks on this repository's LICENSE.

Prints the first and the largest difference of losses and gradient norms. --assert-equal exits with 1 if one differs, to
check changes that must not change numbers.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/compare"
FLAGS = ["--data", str(ROOT / "LICENSE"), "--model", "llama-tiny", "--tp", "2", "--steps", "50", "--seq-len", "64",
         "--batch-size", "4", "--gemm", "mkl", "--threads-per-rank", "1"]
NUMBERS = ("loss", "grad_norm")


def fail(text):
    print(f"loss_compare: {text}", file=sys.stderr)
    sys.exit(2)


def run(words, **options):
    """The command's output; if it fails, exits with the end of its output."""
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def program_of(name):
    """The program that `name` stands for, built if it is a commit's."""
    if pathlib.Path(name).is_file():
        return pathlib.Path(name).resolve()
    commit = run(["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"], cwd=ROOT).strip()
    cache = ROOT / "build/release/CMakeCache.txt"
    libtorch = re.search(r"(?m)^CLEAVE_LIBTORCH:\w+=(.+)$", cache.read_text() if cache.exists() else "")
    if libtorch is None:
        fail("this tree is not built, so its libtorch is not known; ./run build")
    tree = FOLDER / commit
    if not tree.exists():
        tree.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
        print(f"building {name} in {tree}", flush=True)
        run(["cmake", "--preset", "release", f"-DCLEAVE_LIBTORCH={libtorch[1]}"], cwd=tree)
    # Continues an interrupted build; does nothing if all is built.
    run(["cmake", "--build", "--preset", "release", "--target", "cleave", "cleave_torch"], cwd=tree)
    return tree / "build/release/cleave"


def steps_of(program, flags):
    """The numbers of every step of a run with this program, as text of its log."""
    with tempfile.TemporaryDirectory(prefix="cleave-compare-") as folder:
        run([program, "train", *flags, "--out", f"{folder}/run"])
        lines = pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()
    # Numbers stay text: two texts that parse to the same number still differ.
    rows = [json.loads(line, parse_float=str, parse_int=str) for line in lines]
    return [{name: row[name] for name in NUMBERS} for row in rows]


def distance(a, b):
    """The difference of b from a, relative to a; infinite if only one of them is null (not a number)."""
    if a == b:
        return 0.0
    return abs(float(b) - float(a)) / max(abs(float(a)), 1e-300) if None not in (a, b) else float("inf")


def differences(before, after):
    """(step, name, before, after) of every pair of different numbers."""
    if len(before) != len(after):
        fail(f"{len(before)} steps before and {len(after)} after")
    return [(step, name, a[name], b[name])
            for step, (a, b) in enumerate(zip(before, after), 1) for name in NUMBERS if a[name] != b[name]]


def main():
    words = sys.argv[1:]
    flags = FLAGS
    if "--" in words:
        flags = words[words.index("--") + 1:]
        words = words[:words.index("--")]
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--assert-equal", action="store_true")
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default=str(ROOT / "build/cleave"))
    options = parser.parse_args(words)
    before, after = (steps_of(program_of(name), flags) for name in (options.before, options.after))
    found = differences(before, after)
    if not found:
        print(f"{len(before)} steps: losses and gradient norms are the same to the last digit")
        return 0
    step, name, a, b = found[0]
    print(f"{len(before)} steps: first difference in step {step}: {name} {a} before, {b} after")
    step, name, a, b = max(found, key=lambda each: distance(*each[2:]))
    print(f"largest difference in step {step}: {name} {a} before, {b} after, relative {distance(a, b):.2g}")
    return 1 if options.assert_equal else 0


if __name__ == "__main__":
    sys.exit(main())
