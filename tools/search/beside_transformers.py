"""Compares what a case computed with transformers, where CLEAVE_PYTHON names a Python that has it."""
import atexit
import json
import os
import pathlib
import subprocess
import threading

import data
from program import Failure

_lock = threading.Lock()
_server = None


def is_there():
    return bool(os.environ.get("CLEAVE_PYTHON"))


def ask(request):
    """The server's answer; it is started once and answers one case at a time."""
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
    """Whether transformers computes this model by the same formulas and the same types."""
    return (is_there() and dtype in ("fp32", "fp64") and model["family"] != "imdb_bert" and not model["names"]
            and model["hidden"] % model["heads"] == 0  # others are refused there
            and not (model["family"] == "bert" and model["head"] in ("trunk", "pretraining")))


def loss(inputs, dtype):
    """Its loss on the case's rows of ids; None where the rows mean something else there.

    A token that sees no other one has an output that is nobody's to say: in causal models that is one after nothing but
    masked ones, elsewhere one of a row that is masked whole.
    """
    rows, task = inputs.data, data.task_of(inputs.model)
    if rows["form"] != "ids" or rows["blank_rows"] or (rows["mask"] == "left" and task == "lm"):
        return None
    with open(inputs.data_path, encoding="ascii") as file:
        lines = [json.loads(line) for line in file]
    return ask({"model": inputs.model_path, "dtype": dtype, "task": task, "rows": lines})


def ids(inputs, dtype, prompts, flags):
    """Its ids for each prompt: a list of sequences."""
    return ask({"model": inputs.model_path, "dtype": dtype, "task": "lm", "prompts": prompts, "flags": flags})
