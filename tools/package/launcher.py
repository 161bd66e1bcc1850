"""Cleave trains and runs transformers in parallel. It is a C++ program: Python only finds libtorch and starts it.

PREFIX is the folder for CMake's find_package(Cleave): -DCMAKE_PREFIX_PATH=PREFIX.
"""
import importlib.util
import os
import pathlib
import sys

PREFIX = pathlib.Path(__file__).resolve().parent


def libtorch_environment():
    """The environment of the program. It finds torch next to this package itself; elsewhere it needs the path."""
    environment = dict(os.environ)
    torch = importlib.util.find_spec("torch")
    if not (PREFIX.parent / "torch/lib").is_dir() and torch and torch.submodule_search_locations:
        folder = os.path.join(torch.submodule_search_locations[0], "lib")
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [environment.get("LD_LIBRARY_PATH"), folder]))
    return environment


def main():
    sys.stdout.flush()
    os.execve(PREFIX / "bin/cleave", ["cleave", *sys.argv[1:]], libtorch_environment())
