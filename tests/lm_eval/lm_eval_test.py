#!/usr/bin/env python3
"""Evaluates a checkpoint of CLEAVE with lm-evaluation-harness on the task of examples/lm_eval. Skipped (exit code 77) without it.

usage: lm_eval_test.py CLEAVE    needs lm-eval and transformers for $CLEAVE_PYTHON, else python3; run in the repository

The sum of the answers' log-likelihoods must be that which `cleave eval` computes from the same bytes, and the accuracy must
follow from those of the choices.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
PYTHON = os.environ.get("CLEAVE_PYTHON", "python3")
FOLDER = pathlib.Path("examples/lm_eval")
COLOURS = {"apple": "red", "sky": "blue", "leaf": "green", "snow": "white"}


def run(words, **settings):
    result = subprocess.run([str(w) for w in words], capture_output=True, text=True, **settings)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{result.stderr}")
    return result.stdout


def train(cleave, folder):
    """A small model of sentences such as 'The sky is blue.'; its run folder."""
    text = folder / "text.txt"
    things = list(COLOURS)
    text.write_text("".join(f"The {things[i * i % 7 % 4]} is {COLOURS[things[i * i % 7 % 4]]}.\n" for i in range(1000)))
    run([cleave, "train", "--model", "llama-tiny", "--data", text, "--out", folder / "run", "--steps", 20, "--seq-len", 32,
         "--batch-size", 8, "--lr", 3e-3, "--quiet"])
    return folder / "run"


def harness(model, folder):
    """The rows of the harness: question, choices, log-likelihoods, and whether the answer is the likeliest choice."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    run([PYTHON, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={model},dtype=float32",
         "--include_path", FOLDER, "--tasks", "colours", "--device", "cpu", "--batch_size", "1",
         "--log_samples", "--output_path", folder / "results"], env={**os.environ, **offline})
    (samples,) = (folder / "results").rglob("samples_colours_*.jsonl")
    return [json.loads(line) for line in samples.read_text().splitlines()]


def log_likelihood(cleave, model, pairs, folder):
    """The sum over pairs (question, choice), by `cleave eval`: the bytes are the ids."""
    with open(folder / "rows.jsonl", "w") as rows:
        for question, choice in pairs:
            context, answer = list(question.encode()), list(f" {choice}".encode())
            print(json.dumps({"input_ids": context + answer, "labels": [-100] * len(context) + answer}), file=rows)
    answered = json.loads(run([cleave, "eval", "--model", model, "--data", folder / "rows.jsonl", "--json"]))
    assert answered["tokens"] == sum(len(choice) + 1 for _, choice in pairs), answered
    return -answered["loss"] * answered["tokens"]


def main():
    # Finding the packages is quick, importing them takes seconds.
    find = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('lm_eval', 'transformers'))))"
    if subprocess.run([PYTHON, "-c", find], capture_output=True).returncode != 0:
        print("skipped: lm-eval is not installed for", PYTHON)
        sys.exit(SKIPPED)
    cleave = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = train(cleave, folder)
        samples = harness(model, folder)
        assert len(samples) == len((FOLDER / "colours.jsonl").read_text().splitlines())
        pairs, found = [], 0.0
        for sample in samples:
            question, choices, answer = (sample["doc"][key] for key in ("question", "choices", "answer"))
            of_choices = [float(response[0][0]) for response in sample["resps"]]
            assert sample["acc"] == (max(range(len(choices)), key=of_choices.__getitem__) == answer), sample
            pairs.append((question, choices[answer]))
            found += of_choices[answer]
        # One call of cleave. Six numbers of each pair are summed in fp32.
        wanted = log_likelihood(cleave, model, pairs, folder)
        assert math.isclose(found, wanted, abs_tol=1e-4 * len(pairs)), (pairs, found, wanted)
        print(f"{len(pairs)} answers: {found:.4f}, cleave eval {wanted:.4f}")


main()
