#!/usr/bin/env python3
"""Times training steps between two hosts with a slow network: Cleave, and PyTorch's DDP on Gloo. Prints a table in Markdown.

usage: bench/slow_network.py [--build build/release] [--mbit 200,1000] [--steps N] [--runs 'dp 2;DDP']

The hosts are those of hosts_side_by_side.py: network namespaces with one rank on one core each. The model has the sizes of
llama-15m and the byte tokenizer, 8 sequences of 256 tokens a step, fp32. A time is the median of the steps after the second one. Needs
root and iproute2; DDP needs CLEAVE_PYTHON, a Python with torch, and is left out by name without it.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import hosts_side_by_side as hosts

ROOT = hosts.ROOT
SHAPE = ["--batch-size", "8", "--seq-len", "256"]
WARMUP = 2
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 288, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 6,
         "num_key_value_heads": 6, "max_position_embeddings": 2048, "tie_word_embeddings": True, "vocab_size": 257}

CLEAVE_RUNS = {"dp 2": ["--dp", "2"], "dp 2, bf16": ["--dp", "2", "--reduce-dtype", "bf16"],
               "dp 2, ZeRO-1": ["--dp", "2", "--zero", "1"], "pp 2": ["--pp", "2"]}
DDP_RUNS = {"DDP": [], "DDP, bf16_compress_hook": ["--bf16-hook"]}


def cleave_ms(options, name, folder):
    out = folder / f"run-{len(list(folder.iterdir()))}"
    hosts.run_both([options.build / "cleave", "train", "--quiet", "--model", folder / "config.json", "--tokenizer", "bytes",
                    "--data", ROOT / "README.md", "--out", out, "--steps", options.steps + WARMUP, "--threads-per-rank", "1",
                    "--transport", "tcp", *SHAPE, *CLEAVE_RUNS[name]])
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(step["step_ms"] for step in steps[WARMUP:])


def ddp_ms(options, name, folder):
    output = hosts.run_both([options.python, ROOT / "bench/baselines/ddp_train.py", "--config", folder / "config.json",
                             "--steps", options.steps, "--warmup", WARMUP, *SHAPE, *DDP_RUNS[name]])
    return json.loads(output.splitlines()[-1])["step_ms"]


def main():
    parser = argparse.ArgumentParser(description="times training steps between two hosts with a slow network")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="folder of the program cleave")
    parser.add_argument("--mbit", default="200,1000", help="rates of the network in Mbit/s")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of a run")
    parser.add_argument("--runs", default="dp 2;dp 2, bf16;DDP;DDP, bf16_compress_hook",
                        help="; between names: " + "; ".join([*CLEAVE_RUNS, *DDP_RUNS]))
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.python = os.environ.get("CLEAVE_PYTHON")
    names = options.runs.split(";")
    unknown = [name for name in names if name not in CLEAVE_RUNS and name not in DDP_RUNS]
    if unknown:
        return f"--runs: {unknown[0]} is unknown"
    missing = hosts.missing_for_hosts()
    if missing:
        return missing
    if not options.python:
        print("left out: DDP; set CLEAVE_PYTHON to a Python with torch", file=sys.stderr)
        names = [name for name in names if name in CLEAVE_RUNS]
    with tempfile.TemporaryDirectory() as folder, hosts.Hosts() as pair:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        print(f"Milliseconds of a training step.\n\n| network | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
        for mbit in map(float, options.mbit.split(",")):
            pair.limit(mbit / 1000)
            cells = [cleave_ms(options, name, Path(folder)) if name in CLEAVE_RUNS else ddp_ms(options, name, Path(folder))
                     for name in names]
            print(f"| {mbit:g} Mbit/s | {' | '.join(f'{cell:.0f}' for cell in cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
