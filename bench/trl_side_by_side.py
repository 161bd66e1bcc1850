#!/usr/bin/env python3
"""Tunes models on 500 chats with Cleave and with TRL, in the same order and with the same settings, and compares the
held-out losses.

Both see the same files: a copy of the model with a chat template and without dropout, 500 chats of small sums, and 100
held-out ones. The loss is on the tokens of the assistant; each step has two micro-batches. Both have the same learning rate
in each step, with a linear schedule and warm-up; by itself TRL's first step has the rate 0.
Exit code: 0 the losses of all models agree within --tolerance, 1 they do not or a program failed.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEMPLATE = ("{% for m in messages %}{% if m['role'] == 'assistant' %}A: {% generation %}{{ m['content'] + eos_token }}"
            "{% endgeneration %}{% else %}Q: {{ m['content'] }}{% endif %}{{ '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}A: {% endif %}")
NAMES = ("Ann", "Ben", "Carl", "Dora", "Emma", "Finn")
THINGS = ("apples", "books", "coins", "eggs", "pens", "shells")
FOLDER_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                "special_tokens_map.json")
SETTINGS = ("batch_size", "micro_batch_size", "seq_len", "epochs", "lr", "warmup", "weight_decay", "dtype")


def parse_options() -> argparse.Namespace:
    data = os.environ.get("CLEAVE_DATA")
    models = [pathlib.Path(data, "models", name) for name in ("stories260K", "gpt2-shakespeare")] if data else None
    parser = argparse.ArgumentParser(description="compares fine-tuning on chats with TRL")
    parser.add_argument("--models", type=pathlib.Path, nargs="+", default=models, required=models is None,
                        help="folders of Llama or GPT-2 models (default: two small ones of $CLEAVE_DATA)")
    parser.add_argument("--chats", type=int, default=500, help="to train on (default: 500)")
    parser.add_argument("--held-out", type=int, default=100, help="chats to evaluate on (default: 100)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=10, help="chats a step (default: 10)")
    parser.add_argument("--micro-batch-size", type=int, default=5, help="chats a forward pass (default: 5)")
    parser.add_argument("--seq-len", type=int, default=128, help="longer chats are truncated (default: 128)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=10, help="steps (default: 10)")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--tolerance", type=float, default=0.02, help="of the held-out loss, relative (default: 0.02)")
    parser.add_argument("--tp", type=int, default=1, help="Cleave's ranks (default: 1)")
    parser.add_argument("--cleave", default=str(ROOT / "build/cleave"), help="our program (default: build/cleave)")
    parser.add_argument("--python", default=os.environ.get("CLEAVE_PYTHON", sys.executable),
                        help="Python that has torch, transformers and trl (default: $CLEAVE_PYTHON, else this one)")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one run")
    parser.add_argument("--json", type=pathlib.Path, help="file for all numbers")
    options = parser.parse_args()
    for name in ("chats", "held_out", "epochs", "batch_size", "micro_batch_size", "tp"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; expected at least 1")
    if options.batch_size % options.micro_batch_size:
        parser.error(f"--batch-size {options.batch_size} must be a multiple of --micro-batch-size")
    if options.chats % options.batch_size:
        options.chats -= options.chats % options.batch_size
        say(f"{options.chats} chats, so that the epochs have whole steps")
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chat(source: random.Random) -> dict[str, list[dict[str, str]]]:
    """A question or two about small numbers, with their answers."""
    messages = []
    for _ in range(source.choice((1, 1, 2))):
        name, thing = source.choice(NAMES), source.choice(THINGS)
        a, b = source.randrange(1, 10), source.randrange(1, 10)
        if source.random() < 0.5:
            question = f"{name} has {a} {thing} and gets {b} more. How many {thing} are there?"
            answer = f"{name} has {a + b} {thing} now."
        else:
            question = f"Which is more: {a} {thing} or {b}?"
            answer = "They are equal." if a == b else f"{max(a, b)} {thing} are more than {min(a, b)}."
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages}


def write_chats(path: pathlib.Path, count: int, seed: int) -> None:
    source = random.Random(seed)
    path.write_text("".join(json.dumps(chat(source)) + "\n" for _ in range(count)), encoding="utf-8")


def copy_model(model: pathlib.Path, folder: pathlib.Path) -> None:
    """A copy with the template and without dropout, whose masks would differ."""
    folder.mkdir()
    for name in FOLDER_FILES:
        if (model / name).exists():
            shutil.copyfile(model / name, folder / name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout"):
        if name in config:
            config[name] = 0.0
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


class Failed(Exception):
    """A program failed."""


def output_of(name: str, command: list[str], timeout: float) -> str:
    run = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if run.returncode != 0:
        raise Failed(f"{name} failed with exit code {run.returncode}:\n{run.stderr[-2000:]}")
    return run.stdout


class Row:
    """A model, and what both programs got."""

    def __init__(self, model: pathlib.Path, options: argparse.Namespace):
        self.name, self.model, self.options = model.name, model, options
        self.ours: dict[str, float] = {}
        self.theirs: dict[str, float] = {}

    def run(self, folder: pathlib.Path) -> None:
        model, train, held_out = folder / "model", folder / "train.jsonl", folder / "held_out.jsonl"
        copy_model(self.model, model)
        write_chats(train, self.options.chats, seed=1)
        write_chats(held_out, self.options.held_out, seed=2)
        say(f"[{self.name}] Cleave ...")
        self.ours = self._cleave(model, train, held_out, folder / "run")
        say(f"[{self.name}] TRL ...")
        self.theirs = self._trl(model, train, held_out)

    def _flags(self) -> list[str]:
        return [word for name in SETTINGS for word in (f"--{name.replace('_', '-')}", str(getattr(self.options, name)))]

    def _held_out(self, model: pathlib.Path, held_out: pathlib.Path) -> dict[str, float]:
        o = self.options
        command = [o.cleave, "eval", "--model", str(model), "--data", str(held_out), "--seq-len", str(o.seq_len),
                   "--dtype", o.dtype, "--json"]
        return json.loads(output_of(f"{self.name}: cleave eval", command, o.timeout).splitlines()[-1])

    def _cleave(self, model: pathlib.Path, train: pathlib.Path, held_out: pathlib.Path,
                out: pathlib.Path) -> dict[str, float]:
        o = self.options
        command = [o.cleave, "train", "--model", str(model), "--data", str(train), "--out", str(out), "--no-shuffle",
                   *self._flags(), "--schedule", "linear", "--adam-betas", "0.9,0.95", "--clip", "1", "--tp", str(o.tp)]
        start = self._held_out(model, held_out)
        output_of(f"{self.name}: cleave train", command, o.timeout)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        steps = [line for line in lines if "loss" in line]
        return {"held_out_start": start["loss"], "held_out_end": self._held_out(out, held_out)["loss"],
                "held_out_tokens": start["tokens"], "first_loss": steps[0]["loss"], "steps": len(steps)}

    def _trl(self, model: pathlib.Path, train: pathlib.Path, held_out: pathlib.Path) -> dict[str, float]:
        o = self.options
        command = [o.python, str(ROOT / "bench/baselines/trl_train.py"), "--model", str(model), "--data", str(train),
                   "--eval-data", str(held_out), *self._flags()]
        return json.loads(output_of(f"{self.name}: TRL", command, o.timeout).splitlines()[-1])

    def difference(self) -> float:
        return self.ours["held_out_end"] / self.theirs["held_out_end"] - 1

    def agrees(self) -> bool:
        is_same_work = all(self.ours[name] == self.theirs[name] for name in ("held_out_tokens", "steps"))
        return is_same_work and abs(self.difference()) <= self.options.tolerance

    def line(self) -> str:
        values = [f"{side[name]:.4f}" for name in ("held_out_start", "first_loss", "held_out_end")
                  for side in (self.ours, self.theirs)]
        counts = " and ".join(f"{side['steps']} steps, {side['held_out_tokens']} tokens"
                              for side in ((self.ours,) if self.agrees() else (self.ours, self.theirs)))
        return f"| {self.name} | {' | '.join(values)} | {100 * self.difference():+.2f} % | {counts} |"


def print_table(rows: list[Row], options: argparse.Namespace) -> None:
    versions = sorted({row.theirs["version"] for row in rows})
    print(f"TRL {', '.join(versions)}; {options.chats} chats, {options.epochs} epochs, {options.batch_size} chats a step in "
          f"micro-batches of {options.micro_batch_size}, lr {options.lr:g}, {options.dtype}, Cleave with tp={options.tp}.\n")
    print("| model | held-out loss before, Cleave | TRL | first loss, Cleave | TRL | held-out loss after, Cleave | TRL | "
          "difference | |\n|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(row.line())


def main() -> int:
    options = parse_options()
    done, has_failed = [], False
    for model in options.models:
        row = Row(model, options)
        try:
            with tempfile.TemporaryDirectory() as folder:
                row.run(pathlib.Path(folder))
            done.append(row)
        except (Failed, subprocess.TimeoutExpired) as error:
            say(str(error))
            has_failed = True
    if done:
        print_table(done, options)
    if options.json:
        rows = [{"name": row.name, "Cleave": row.ours, "TRL": row.theirs} for row in done]
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    for row in done:
        if not row.agrees():
            say(f"{row.name}: the programs do not agree within {100 * options.tolerance:g} %")
            has_failed = True
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
