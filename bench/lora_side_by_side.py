#!/usr/bin/env python3
"""Compares LoRA training in Cleave with PEFT and PyTorch on this machine, in one run: tokens/s, peak memory and losses.

The programs of a row run in turn (A B A B ...), --repeats times; the table has the medians. Both train on the same random
rows in the same order, so the first losses agree up to rounding. Runs during which other processes used more than 5 % of
the CPU time are marked. nf4 is beside PEFT with bitsandbytes (QLoRA), which must be installed. int8 has no PEFT on CPUs: that
row compares Cleave's int8 base with PEFT's plain one.
Exit code: 0 all rows were measured, 1 a program failed.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import machine
import quiet

ROOT = pathlib.Path(__file__).resolve().parents[1]
BASELINES = ROOT / "bench/baselines"
SHAPES = ("llama-135m", "llama-1.1b")
VOCAB_SIZE = 32000
CLEAVE_FLAGS = {"lora": [], "dora": ["--dora"], "dropout": ["--lora-dropout", "0.1"], "int8": ["--lora-base", "int8"],
                "nf4": ["--lora-base", "nf4"]}
MEASURES = ("tokens_per_s", "peak_bytes", "first_loss", "last_loss")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="times LoRA training beside PEFT")
    parser.add_argument("--shapes", default="llama-135m", help=f"comma-separated: {', '.join(SHAPES)} (default: llama-135m)")
    parser.add_argument("--dtypes", default="fp32,bf16", help="comma-separated: fp32, bf16 (default: both)")
    parser.add_argument("--variants", default="lora,dora,int8",
                        help=f"comma-separated: {', '.join(CLEAVE_FLAGS)} (default: lora,dora,int8)")
    parser.add_argument("--rank", type=int, default=8, help="of the adapters of all linear layers (default: 8)")
    parser.add_argument("--batch-size", type=int, default=4, help="sequences a step (default: 4)")
    parser.add_argument("--seq-len", type=int, default=256, help="tokens a sequence (default: 256)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a run (default: 5)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them (default: 2)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program (default: 3)")
    parser.add_argument("--cleave", default=str(ROOT / "build/cleave"), help="our program (default: build/cleave)")
    parser.add_argument("--python", default=os.environ.get("CLEAVE_PYTHON", sys.executable),
                        help="Python that has torch, transformers and peft (default: $CLEAVE_PYTHON, else this one)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="per program (default: cores)")
    parser.add_argument("--tp", type=int, default=2, help="Cleave's ranks, which share the threads (default: 2)")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "out/bench", help="folder of the random models")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one run")
    parser.add_argument("--json", type=pathlib.Path, help="file for all measurements")
    options = parser.parse_args()
    known = {"shapes": SHAPES, "dtypes": ("fp32", "bf16"), "variants": tuple(CLEAVE_FLAGS)}
    for name, words in known.items():
        chosen = getattr(options, name).split(",")
        unknown = set(chosen) - set(words)
        if unknown:
            parser.error(f"--{name} has '{min(unknown)}'; expected {', '.join(words)}")
        setattr(options, name, chosen)
    for name in ("rank", "batch_size", "steps", "repeats", "threads", "tp"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; expected at least 1")
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def require_packages(python: str) -> dict[str, str]:
    code = ("import importlib.metadata as m, json; "
            "print(json.dumps({n: m.version(n) for n in ('torch', 'transformers', 'peft')}))")
    result = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        raise SystemExit(f"--python {python} does not have torch, transformers and peft: {reason}")
    return json.loads(result.stdout)


def write_rows(path: pathlib.Path, options: argparse.Namespace) -> None:
    source = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range((options.warmup + options.steps) * options.batch_size):
            ids = [source.randrange(3, VOCAB_SIZE) for _ in range(options.seq_len)]
            file.write(json.dumps({"input_ids": ids}) + "\n")


def model_folder(shape: str, dtype: str, options: argparse.Namespace) -> str:
    """A model with random weights; it is written once."""
    command = [options.python, str(BASELINES / "make_model.py"), "--shape", shape, "--kind", "ids", "--dtype", dtype,
               "--folder", str(options.models)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"make_model.py failed for {shape}:\n{result.stderr[-2000:]}")
    return result.stdout.splitlines()[-1]


class Failed(Exception):
    """A program of a row failed."""


def checked(name: str, run: quiet.Run) -> quiet.Run:
    if run.returncode != 0:
        raise Failed(f"{name} failed with exit code {run.returncode}:\n{run.errors[-2000:]}")
    return run


class Row:
    """A shape, dtype and variant, and what both programs measured."""

    def __init__(self, shape: str, dtype: str, variant: str, options: argparse.Namespace):
        self.name = f"{shape}, {dtype}, {variant}"
        self.shape, self.dtype, self.variant, self.options = shape, dtype, variant, options
        self.values: dict[str, list[dict[str, float]]] = {"Cleave": [], "PEFT": []}
        self.others_share = 0.0

    def run(self) -> None:
        model = model_folder(self.shape, self.dtype, self.options)
        for repeat in range(self.options.repeats):
            for name, measure in (("Cleave", self._cleave), ("PEFT", self._peft)):
                say(f"[{self.name}, {repeat + 1} of {self.options.repeats}] {name} ...")
                with tempfile.TemporaryDirectory() as folder:
                    rows = pathlib.Path(folder, "rows.jsonl")
                    write_rows(rows, self.options)
                    self.values[name].append(measure(model, rows))

    def _cleave(self, model: str, rows: pathlib.Path) -> dict[str, float]:
        o = self.options
        out = rows.parent / "run"
        command = [o.cleave, "train", "--model", model, "--data", str(rows), "--out", str(out), "--no-shuffle",
                   "--lora", str(o.rank), "--dtype", self.dtype, "--batch-size", str(o.batch_size),
                   "--seq-len", str(o.seq_len), "--steps", str(o.warmup + o.steps), "--lr", "1e-4", "--warmup", "0",
                   "--schedule", "constant", "--tp", str(o.tp), "--threads-per-rank", str(max(1, o.threads // o.tp)),
                   *CLEAVE_FLAGS[self.variant]]
        self._run_checked("Cleave", command, {})
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps = [step for step in map(json.loads, lines) if "tokens_per_s" in step]
        return {"tokens_per_s": statistics.median(step["tokens_per_s"] for step in steps[o.warmup:]),
                "peak_bytes": max(step["peak_rss_bytes"] for step in steps),
                "first_loss": steps[0]["loss"], "last_loss": steps[-1]["loss"]}

    def _peft(self, model: str, rows: pathlib.Path) -> dict[str, float]:
        o = self.options
        variant = "lora" if self.variant == "int8" else self.variant
        command = [o.python, str(BASELINES / "peft_train.py"), "--model", model, "--data", str(rows), "--rank", str(o.rank),
                   "--variant", variant, "--dtype", self.dtype, "--batch-size", str(o.batch_size),
                   "--steps", str(o.steps), "--warmup", str(o.warmup), "--threads", str(o.threads)]
        run = self._run_checked("PEFT", command, {"OMP_NUM_THREADS": str(o.threads)})
        return json.loads(run.output.splitlines()[-1])

    def _run_checked(self, name: str, command: list[str], environment: dict[str, str]) -> quiet.Run:
        run = checked(f"{self.name}: {name}", quiet.run(command, environment, self.options.timeout))
        self.others_share = max(self.others_share, run.others_share)
        return run

    def median(self, program: str, measure: str) -> float:
        return statistics.median(value[measure] for value in self.values[program])

    def line(self) -> str:
        ours = {measure: self.median("Cleave", measure) for measure in MEASURES}
        theirs = {measure: self.median("PEFT", measure) for measure in MEASURES}
        note = " (noisy)" if self.others_share > quiet.MAX_OTHERS_SHARE else ""
        return (f"| {self.name}{note} | {ours['tokens_per_s']:.0f} | {theirs['tokens_per_s']:.0f} | "
                f"{ours['tokens_per_s'] / theirs['tokens_per_s']:.2f} | {ours['peak_bytes'] / 2**30:.2f} | "
                f"{theirs['peak_bytes'] / 2**30:.2f} | {ours['first_loss']:.4f}, {ours['last_loss']:.4f} | "
                f"{theirs['first_loss']:.4f}, {theirs['last_loss']:.4f} |")


def print_table(rows: list[Row], options: argparse.Namespace, versions: dict[str, str]) -> None:
    cpu = machine.cpu()
    programs = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"{cpu['model']}, {options.threads} threads, {cpu['memory_gib']} GiB; {programs}; rank {options.rank}, "
          f"{options.batch_size} x {options.seq_len} tokens a step; medians of {options.repeats} runs; Cleave with "
          f"tp={options.tp}.\n")
    print("| workload | Cleave tokens/s | PEFT tokens/s | ratio | Cleave peak GiB | PEFT peak GiB | "
          "Cleave losses (first, last) | PEFT losses |\n|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(row.line())


def main() -> int:
    options = parse_options()
    versions = require_packages(options.python)
    quiet.adopt_orphans()
    done, has_failed = [], False
    for shape in options.shapes:
        for dtype in options.dtypes:
            for variant in options.variants:
                row = Row(shape, dtype, variant, options)
                try:
                    row.run()
                    done.append(row)
                except Failed as error:
                    say(str(error))
                    has_failed = True
    print_table(done, options, versions)
    if options.json:
        facts = {"machine": machine.describe(), "versions": versions,
                 "rows": [{"name": row.name, "others_share": row.others_share, "values": row.values} for row in done]}
        options.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
