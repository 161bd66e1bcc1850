"""Runs what the packages hold, in empty folders and without the caller's environment."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

from stage import ROOT, SYSTEM, Problem, output

TEXT = "Cleave trains transformers.\n" * 400
TRAIN = "train --model llama-tiny --data text.txt --out out --steps 3 --batch-size 2 --seq-len 64 --tp 2".split()
GENERATE = ["generate", "--model", "out", "--max-new-tokens", "4", "--prompt", "Cleave"]


def wheels():
    """The wheels of libtorch that ./run uses."""
    text = output("bash", "-c", 'source tools/setup.sh; printf "%s\\n" "${LIBTORCH_WHEELS[@]}"', cwd=ROOT)
    return text.split()


class Clock:
    """Prints what each part took."""

    def __init__(self):
        self.last = time.monotonic()

    def part(self, text):
        now = time.monotonic()
        print(f"{text}: {now - self.last:.1f} s", flush=True)
        self.last = time.monotonic()


def train_and_generate(program, folder, clock, **variables):
    """Runs `program` (words) in `folder` with no more environment than `variables`."""
    environment = {"PATH": os.defpath, "HOME": str(folder), **variables}
    (folder / "text.txt").write_text(TEXT)
    text = output(*program, *TRAIN, cwd=folder, env=environment)
    if "step 3/3" not in text:
        raise Problem(f"cleave train printed no third step:\n{text}")
    clock.part("cleave train, 3 steps on 2 ranks")
    output(*program, *GENERATE, cwd=folder, env=environment)
    clock.part("cleave generate, 4 tokens")
    shutil.rmtree(folder / "out")


def find_package(prefix, folder, clock, *flags):
    """Configures tests/install/outside against `prefix`, then builds and runs its program that needs no libtorch."""
    build = folder / "outside"
    output("cmake", "-S", ROOT / "tests/install/outside", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", *flags)
    if "torch_user" not in output("cmake", "--build", build, "--target", "help"):
        raise Problem(f"find_package(Cleave) in {prefix} found no libtorch")
    output("cmake", "--build", build, "--target", "core_user")
    output(build / "core_user")
    clock.part("find_package(Cleave), one small program")
    shutil.rmtree(build)


def wheel_with(wheel, libtorch):
    """Runs the wheel next to a link to a libtorch folder: no network, and only Python's standard library."""
    with tempfile.TemporaryDirectory(prefix="cleave-wheel-") as name:
        folder, site, clock = pathlib.Path(name), pathlib.Path(name) / "site", Clock()
        with zipfile.ZipFile(wheel) as file:
            file.extractall(site)
        (site / "cleave/bin/cleave").chmod(0o755)
        (site / "torch").symlink_to(libtorch)
        refuse_outside_libraries(site / "cleave")
        train_and_generate([sys.executable, "-m", "cleave"], folder, clock, PYTHONPATH=str(site))


def refuse_outside_libraries(folder):
    """Fails if a binary finds no library, or finds one in the system that a plain Python image does not have."""
    for path in [folder / "bin/cleave", folder / "lib/libcleave.so", folder / "lib/libcleave_sentencepiece.so"]:
        for name, place in re.findall(r"(\S+) => (not found|\S+)", output("ldd", path, env={"PATH": os.defpath})):
            if place == "not found" or (place.startswith(("/lib", "/usr/lib")) and not SYSTEM.match(name)):
                raise Problem(f"{path.name} needs {name}: {place}; expected it in {folder / 'lib'}")


def all_packages(wheel, tarball, deb):
    """Installs the wheel and libtorch from PyPI into a virtual environment; then runs the other two with that libtorch."""
    with tempfile.TemporaryDirectory(prefix="cleave-check-", dir=ROOT / "build") as name:
        folder, clock = pathlib.Path(name), Clock()
        began = clock.last
        site = install_wheel(wheel, folder, clock)
        python = folder / "venv/bin/python"
        train_and_generate([folder / "venv/bin/cleave"], folder, clock)
        print(f"from nothing to a trained model: {time.monotonic() - began:.1f} s")
        prefix = output(python, "-c", "import cleave; print(cleave.PREFIX)").strip()
        find_package(prefix, folder, clock)
        refuse_outside_libraries(pathlib.Path(prefix))

        output("tar", "-xf", tarball, "-C", folder)
        unpacked = next(folder.glob("cleave-*"))
        (unpacked / "libtorch").symlink_to(site)
        print("the tarball, with a link to libtorch:")
        train_and_generate([unpacked / "bin/cleave"], folder, clock)

        output("dpkg-deb", "-x", deb, folder / "deb")
        print("the Debian package, unpacked, with LD_LIBRARY_PATH:")
        train_and_generate([folder / "deb/usr/bin/cleave"], folder, clock, LD_LIBRARY_PATH=str(site / "torch/lib"))
        find_package(folder / "deb/usr/lib/cleave", folder, clock, f"-DCLEAVE_LIBTORCH={site / 'torch'}")


def install_wheel(wheel, folder, clock):
    """Returns site-packages of a new virtual environment with the wheel and libtorch. Ignores pip's cache."""
    output(sys.executable, "-m", "venv", folder / "venv")
    pip = [folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
    clock.part("new virtual environment")
    output(*pip, "download", "--no-cache-dir", "--no-deps", "--dest", folder / "wheels", *wheels())
    size = sum(path.stat().st_size for path in (folder / "wheels").iterdir())
    clock.part(f"download of {size / 1e6:.0f} MB, {' '.join(wheels())}")
    output(*pip, "install", "--no-index", "--no-deps", "--no-compile", wheel, *sorted((folder / "wheels").iterdir()))
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    used = int(subprocess.run(["du", "-sm", site], capture_output=True, text=True, check=True).stdout.split()[0])
    clock.part(f"pip install ({used} MB on disk)")
    return site
