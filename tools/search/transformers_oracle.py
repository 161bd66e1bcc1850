"""Compares a case's results with transformers, if CLEAVE_PYTHON names a Python that has it."""
import atexit
import functools
import json
import os
import pathlib
import subprocess
import threading

import data
import models
from program import Failure

_lock = threading.Lock()
_server = None


@functools.cache
def has_modules(*names):
    """Whether CLEAVE_PYTHON is a Python with these modules."""
    python = os.environ.get("CLEAVE_PYTHON")
    find = "import importlib.util as u, sys; sys.exit(not all(u.find_spec(name) for name in sys.argv[1:]))"
    return bool(python) and subprocess.run([python, "-c", find, *names], check=False).returncode == 0


def has_peft():
    return has_modules("peft")


@functools.cache
def has_muon():
    """Whether CLEAVE_PYTHON has torch 2.9 or later."""
    program = "import torch, sys; sys.exit(not hasattr(torch.optim, 'Muon'))"
    return subprocess.run([os.environ["CLEAVE_PYTHON"], "-c", program], check=False).returncode == 0


def ask(request):
    """The answer of the server, which is started once and answers one case at a time."""
    global _server
    with _lock:
        if _server is None:
            path = pathlib.Path(__file__).with_name("transformers_server.py")
            _server = subprocess.Popen([os.environ["CLEAVE_PYTHON"], str(path)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
            atexit.register(_server.kill)
        _server.stdin.write(json.dumps(request) + "\n")
        _server.stdin.flush()
        line = _server.stdout.readline()
    if not line:
        raise Failure("transformers", "its process ended")
    answer = json.loads(line)
    if "error" in answer:
        raise Failure("transformers", answer["error"])
    return answer["answer"]


def can_compare(model, dtype):
    """Whether transformers computes this model with the same formulas and dtypes."""
    return (has_modules("torch", "transformers") and dtype in ("fp32", "fp64") and model["family"] != "imdb_bert" and not model["names"]
            and model["hidden"] % model["heads"] == 0  # transformers refuses other sizes
            and not (model["family"] in models.ENCODERS and model["head"] in ("trunk", "pretraining")))


def loss(inputs, dtype):
    """transformers' loss on the case's sequences of ids; None if they mean something else there."""
    rows, task, flags = inputs.data, data.task_of(inputs.model), inputs.case["math"]
    if rows["form"] == "pairs":
        pairs = data.ids_of_pairs(inputs.data_path, flags["seq-len"])
        return ask({"model": inputs.model_path, "reference": inputs.reference_path, "dtype": dtype, "task": task, "pairs": pairs,
                    "beta": float(flags.get("dpo-beta", 0.1))}) if pairs else None
    lines = defined_rows(inputs) if rows["form"] == "ids" else None
    return ask({"model": inputs.model_path, "dtype": dtype, "task": task, "rows": lines}) if lines else None


def defined_rows(inputs):
    """The rows of ids; None if transformers computes something else of one.

    The output of a token that attends to no token is undefined: in causal models a token after only masked ones, with a sliding
    window one whose window is masked, elsewhere a token of a fully masked sequence.
    """
    rows = inputs.data
    if rows["blank_rows"] or (rows["mask"] == "left" and data.task_of(inputs.model) == "lm"):
        return None
    labels_by_ids = inputs.model["head"] == "classify" and inputs.model["family"] not in models.ENCODERS
    if labels_by_ids and (rows["mask"] or inputs.model["pad_id"] >= 0):  # the last id other than the padding id counts there
        return None
    with open(inputs.data_path, encoding="ascii") as file:
        lines = [json.loads(line) for line in file]
    return None if any(has_masked_window(line.get("attention_mask", []), inputs.model["window"]) for line in lines) else lines


def has_masked_window(mask, window):
    """Whether a token and the window - 1 tokens before it are masked. A window of 0 is none."""
    return window > 0 and any(not any(mask[max(0, end - window):end]) for end in range(1, len(mask) + 1))


def ids(inputs, dtype, prompts, flags):
    """transformers' ids for each prompt: a list of sequences."""
    return ask({"model": inputs.model_path, "dtype": dtype, "task": "lm", "prompts": prompts, "flags": flags})


def predictions(inputs, dtype, texts, length):
    """transformers' form of the answers of `cleave predict --json`, with the probabilities of all words."""
    task = "pretraining" if inputs.model["head"] == "pretraining" else data.task_of(inputs.model)
    return ask({"model": inputs.model_path, "dtype": dtype, "task": task, "texts": texts, "length": length})
