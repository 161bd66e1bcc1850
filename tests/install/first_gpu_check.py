"""usage: first_gpu_check.py PROGRAM

Runs tools/first_gpu.sh with the real program on the CPU, in a folder like that of ./run pack-gpu: its commands, flags and
comparisons must work before someone with a GPU uses their ten minutes.
"""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = "doctor,train,resume,generate,layouts,speed_train,speed_decode"


def main(program):
    with tempfile.TemporaryDirectory(prefix="cleave-first-gpu-") as name:
        folder = pathlib.Path(name)
        (folder / "bin").mkdir()
        (folder / "bin/cleave").symlink_to(program)
        for file in ("tools/first_gpu.sh", "LICENSE", "bench/baselines/plain_llama.py"):
            (folder / pathlib.Path(file).name).symlink_to(ROOT / file)
        words = [f"{folder}/first_gpu.sh", "--device", "cpu", "--out", f"{folder}/report", "--only", PARTS]
        ran = subprocess.run(words, stdout=subprocess.PIPE, text=True)
        print((folder / "report").read_text())
        rows = [line.split()[:2] for line in ran.stdout.splitlines()[:-1]]
        return rows != [[part, "passed"] for part in PARTS.split(",")] or ran.returncode != 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
