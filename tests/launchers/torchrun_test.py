#!/usr/bin/env python3
"""Trains with CLEAVE under torchrun itself, of $CLEAVE_PYTHON (else python3). Skipped (exit code 77) without it.

usage: torchrun_test.py CLEAVE    run in the repository

The losses must be those of the same ranks as threads, bit for bit; a run whose rank is killed must continue.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
PYTHON = os.environ.get("CLEAVE_PYTHON", "python3")


def words_of(cleave, out, *more):
    return [cleave, "train", "--model", "llama-tiny", "--data", "LICENSE", "--out", out, "--steps", "6", "--seq-len", "32",
            "--batch-size", "4", "--dp", "2", "--gemm", "mkl", "--threads-per-rank", "1", *more]


def losses(out):
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def torchrun(words, *flags):
    return subprocess.run([PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *flags, "--no-python",
                           *map(str, words)], capture_output=True, text=True, timeout=200)


def main():
    find = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    if subprocess.run([PYTHON, "-c", find], capture_output=True).returncode != 0:
        print("skipped: torch is not installed for", PYTHON)
        sys.exit(SKIPPED)
    cleave = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run(words_of(cleave, folder / "threads"), check=True, capture_output=True)
        ran = torchrun(words_of(cleave, folder / "torchrun"))
        assert ran.returncode == 0, ran.stderr
        assert losses(folder / "torchrun") == losses(folder / "threads")
        # Rank 1 of the first attempt ends after the checkpoint of step 20 is there.
        marker = folder / "restart/step_00000020/manifest.json"
        kill = ('if [ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then '
                f'"$0" "$@" & until [ -e {marker} ]; do sleep 0.01; done; kill -9 $!; wait $!; exit 1; fi; exec "$0" "$@"')
        more = ("--save-every", "20", "--steps", "40")
        subprocess.run(words_of(cleave, folder / "whole", *more), check=True, capture_output=True)
        ran = torchrun(["/bin/bash", "-c", kill, *words_of(cleave, folder / "restart", *more)], "--max-restarts", "1")
        assert ran.returncode == 0, ran.stderr
        assert "resumed after step" in ran.stdout, ran.stdout
        assert losses(folder / "restart") == losses(folder / "whole")
        print("torchrun: the losses of threads, also after a restart")


main()
