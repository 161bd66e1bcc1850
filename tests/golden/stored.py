"""Stores a script's results, or with --check compares them with the stored files."""

import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

CHECKS = "--check" in sys.argv[1:]
HERE = pathlib.Path(__file__).resolve().parent


def report(path, problem):
    sys.exit(f"{path}: {problem}; run the script without --check to store its values")


def put_text(path, text):
    if not CHECKS:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        report(path, "differs from what the script makes")


def put_bytes(path, value):
    if not CHECKS:
        path.write_bytes(value)
    elif path.read_bytes() != value:
        report(path, "differs from what the script makes")


def put_json(path, value):
    put_text(path, json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def put_lines(path, rows):
    put_text(path, "".join(json.dumps(row, ensure_ascii=True, separators=(",", ":")) + "\n" for row in rows))


def put_tensors(path, tensors, bound):
    """Integers must agree exactly, floats within `bound` of the largest value of their tensor."""
    tensors = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    if not CHECKS:
        save_file(tensors, path)
        return
    stored = load_file(path)
    if {n: v.shape for n, v in stored.items()} != {n: v.shape for n, v in tensors.items()}:
        report(path, "has other tensors than the script makes")
    for name, value in tensors.items():
        largest = np.abs(stored[name].astype(np.float64)).max(initial=1.0)
        difference = np.abs(stored[name].astype(np.float64) - value.astype(np.float64)).max(initial=0.0)
        if difference > (bound * largest if np.issubdtype(value.dtype, np.floating) else 0):
            report(path, f"{name} differs by {difference:.1e}")
