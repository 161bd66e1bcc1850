#!/usr/bin/env python3
"""Compares forecasts of `cleave plan` with runs of `cleave train`: time of a step and tensor memory of the fullest rank, for 30
layouts of nine decoder families. Prints a Markdown table with time by kind, then mean and worst errors. Run it on a quiet
machine: a row during which other programs used more than 5 % of the CPUs is marked and does not count in the summary.

BERT is not among the families: its sequences are as long as their texts, not as --seq-len.

usage: plan_accuracy.py [--cleave PROGRAM] [--data FILE] [--steps N] [--only PART] [--scale N] [--json FILE]
--only runs the layouts whose family or flags contain PART; --scale multiplies the width of the models (default 4).
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import quiet

WARMUP_STEPS = 2  # libraries start, memory is taken
HEADS = 8
EXPERTS = {"num_experts_per_tok": 2}

#        family: fields of its config.json beyond the sizes
FAMILIES = {"llama": {}, "mistral": {}, "qwen2": {}, "qwen3": {"head_dim": 32}, "olmo2": {},
            "phi3": {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}, "gpt2": {},
            "mixtral": {"num_local_experts": 4, **EXPERTS},
            "qwen3_moe": {"num_experts": 4, "head_dim": 32, "norm_topk_prob": True, **EXPERTS}}

# (family, flags of the layout and the step)
LAYOUTS = [
    ("llama", ""), ("llama", "--dtype bf16"), ("llama", "--recompute full"), ("llama", "--recompute selective"),
    ("llama", "--tp 2"), ("llama", "--tp 2 --sequence-parallel"), ("llama", "--dp 2"), ("llama", "--dp 2 --zero 1"),
    ("llama", "--dp 2 --fsdp"), ("llama", "--pp 2"), ("llama", "--pp 2 --virtual-pipeline 2"),
    ("llama", "--pp 2 --schedule-pp zero-bubble"), ("llama", "--tp 2 --dp 2 --fsdp"), ("llama", "--tp 2 --pp 2"),
    ("llama", "--tp 2 --dtype bf16 --micro-batch-size 2"),
    ("gpt2", ""), ("gpt2", "--tp 2"), ("gpt2", "--dp 2 --zero 1 --dtype bf16"), ("gpt2", "--pp 2"),
    ("mistral", "--tp 2"), ("mistral", "--dp 2 --fsdp --dtype bf16"),
    ("qwen2", ""), ("qwen2", "--tp 2"), ("qwen3", ""), ("qwen3", "--dp 2 --fsdp"),
    ("olmo2", "--tp 2"), ("phi3", ""),
    ("mixtral", "--tp 2"), ("mixtral", "--dp 2 --ep 2"), ("qwen3_moe", ""),
]


def config_of(family, scale):
    """A config.json of a family, of width 64 x `scale`."""
    width = 64 * scale
    config = {"model_type": family, "vocab_size": 1024, "tie_word_embeddings": True, **FAMILIES[family]}
    if family == "gpt2":
        config.update(n_embd=width, n_layer=8, n_head=HEADS, n_positions=1024)
    else:
        config.update(hidden_size=width, intermediate_size=4 * width, num_hidden_layers=8, num_attention_heads=HEADS,
                      num_key_value_heads=HEADS // 2, max_position_embeddings=1024)
    if family == "qwen3_moe":
        config["moe_intermediate_size"] = width
    return config


class Failed(Exception):
    """A command that failed, with the last line that it printed."""


def checked(run):
    if run.returncode != 0:
        raise Failed((run.errors.strip() or run.output.strip() or f"exit code {run.returncode}").splitlines()[-1])
    return run


def measured(options, family, flags, folder):
    """Forecast and measurement of a layout."""
    model = folder / f"{family}.json"
    model.write_text(json.dumps(config_of(family, options.scale)))
    step = ["--batch-size", "8", "--seq-len", "128", *flags.split()]
    answer = checked(quiet.run([options.cleave, "plan", "--model", str(model), *step, "--json"], {}, options.timeout)).output
    plan = json.loads(answer)
    if "refused" in plan:
        raise Failed(plan["refused"])
    out = folder / "run"
    command = [options.cleave, "train", "--model", str(model), "--tokenizer", "bytes", "--data", options.data, "--out", str(out),
               "--steps", str(options.steps), *step]
    run = checked(quiet.run(command, {}, options.timeout))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    report = json.loads((out / "report.json").read_text())
    return {"family": family, "flags": flags, "others_share": run.others_share,
            "forecast_s": plan["step_s"], "step_s": statistics.median(row["step_ms"] / 1000 for row in rows[WARMUP_STEPS:]),
            "forecast_kinds": plan["time"],
            "kinds": report["step_time"],
            "forecast_bytes": max(rank["bytes"] for rank in plan["ranks"]),
            "bytes": max(sum(rank["bytes"].values()) for rank in report["memory"])}


def kinds_text(kinds):
    return ", ".join(f"{name} {1000 * seconds:.0f}" for name, seconds in kinds.items() if seconds >= 0.0005)


def line_of(row):
    time_error = row["forecast_s"] / row["step_s"] - 1
    memory_error = row["forecast_bytes"] / row["bytes"] - 1
    busy = "" if row["others_share"] <= quiet.MAX_OTHERS_SHARE else f" (others used {100 * row['others_share']:.0f} %)"
    mib = 2**20
    return (f"| {row['family']} | {row['flags'] or 'one rank'}{busy} | {1000 * row['forecast_s']:.0f} | {1000 * row['step_s']:.0f} | "
            f"{100 * time_error:+.1f} % | {kinds_text(row['forecast_kinds'])} | {kinds_text(row['kinds'])} | "
            f"{row['forecast_bytes'] / mib:.1f} | {row['bytes'] / mib:.1f} | {100 * memory_error:+.1f} % |")


def summary(rows, forecast, real):
    errors = [abs(row[forecast] / row[real] - 1) for row in rows]
    return f"mean {100 * sum(errors) / len(errors):.1f} %, worst {100 * max(errors):.1f} % of {len(errors)} layouts"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).parents[1]
    parser.add_argument("--cleave", default=str(root / "build/cleave"))
    parser.add_argument("--data", default=str(root / "LICENSE"))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", default="")
    parser.add_argument("--scale", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.steps <= WARMUP_STEPS:
        parser.error(f"--steps is {options.steps}; the first {WARMUP_STEPS} do not count, so give more")
    chosen = [(family, flags) for family, flags in LAYOUTS if options.only in f"{family} {flags}"]
    if not chosen:
        parser.error(f"--only {options.only} leaves no layout")
    quiet.adopt_orphans()
    print("| family | layout | forecast [ms] | measured [ms] | error | forecast by kind [ms] | measured by kind [ms] | "
          "memory: forecast [MiB] | measured [MiB] | error |\n|---|---|---|---|---|---|---|---|---|---|", flush=True)
    rows, failures = [], 0
    for family, flags in chosen:
        with tempfile.TemporaryDirectory(prefix="cleave-plan-") as folder:
            try:
                rows.append(measured(options, family, flags, pathlib.Path(folder)))
                print(line_of(rows[-1]), flush=True)
            except Failed as problem:
                failures += 1
                print(f"| {family} | {flags} | failed: {problem} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    quiet_rows = [row for row in rows if row["others_share"] <= quiet.MAX_OTHERS_SHARE]
    if rows:
        print(f"\nmemory: {summary(rows, 'forecast_bytes', 'bytes')}")
    if quiet_rows:
        print(f"time: {summary(quiet_rows, 'forecast_s', 'step_s')}, machine quiet")
    print(f"{len(rows)} layouts measured, {len(rows) - len(quiet_rows)} of them on a busy machine, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
