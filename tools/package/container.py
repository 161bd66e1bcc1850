"""Runs the steps of the Containerfile in a root folder of debootstrap, without an image. Needs root."""
import json
import os
import pathlib
import re
import shutil

from check import GENERATE, TEXT, TRAIN, Clock
from stage import Problem, output

CONTAINERFILE = pathlib.Path(__file__).resolve().parent / "Containerfile"


def steps():
    """[(instruction, argument)]"""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def run_in(root, words, environment, folder):
    """Runs `words` in `root`, with its own /proc."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"  # of this machine; that in `environment` is the container's
    output(shutil.which("unshare"), "--mount", "--pid", "--fork", f"--mount-proc={root / 'proc'}",
           shutil.which("chroot", path=path), root,
           "/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", folder, *words, env=environment)


def build(root, packages):
    """Runs all steps but FROM, then trains and generates with the entry point. pip's settings are the caller's."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    if "PIP_CERT" in environment:  # a file of this machine
        environment["PIP_CERT"] = "/tmp/pip-cert.pem"
        shutil.copy(os.environ["PIP_CERT"], root / "tmp/pip-cert.pem")
    environment.update(PATH=os.defpath + ":/usr/sbin:/sbin", HOME="/tmp")
    clock, folder, entry = Clock(), "/", []
    for instruction, argument in steps():
        if instruction == "RUN":
            run_in(root, ["/bin/sh", "-c", argument], environment, folder)
        elif instruction == "COPY":
            pattern, target = argument.split()
            for path in packages.glob(pattern):
                shutil.copy(path, root / target.lstrip("/"))
        elif instruction == "ENV":
            environment.update([argument.split("=", 1)])
        elif instruction == "WORKDIR":
            folder = argument
            (root / folder.lstrip("/")).mkdir(exist_ok=True)
        elif instruction == "ENTRYPOINT":
            entry = json.loads(argument)
        elif instruction != "FROM":
            raise Problem(f"{CONTAINERFILE.name} has a step that this check does not know: {instruction}")
        clock.part(f"{instruction} {' '.join(argument.split())[:70]}")
    (root / folder.lstrip("/") / "text.txt").write_text(TEXT)
    for words in (TRAIN, GENERATE):
        run_in(root, [*entry, *words], environment, folder)
        clock.part(f"cleave {words[0]}")
