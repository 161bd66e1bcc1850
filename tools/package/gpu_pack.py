"""usage: ./run pack-gpu

Makes the folder build/gpu-pack from build/release: what a machine with a GPU but without a network needs to run
tools/first_gpu.sh. It holds everything but libtorch, which that machine's Python must have, in the version of this build.
"""
import argparse
import pathlib
import re
import shutil
import sys
import tempfile

from stage import ROOT, LIBTORCH, SYSTEM, Problem, bundle, needed, output, stage

MOST_BYTES = 64 << 20
README = """\
Cleave for a first run on a GPU, made by ./run pack-gpu.

1. Copy this folder to the machine. Its python3 must have torch {torch}.*, for CUDA.
2. Run ./first_gpu.sh (ten minutes at most; --help shows its options).
3. Send first-gpu.txt back.
"""


def torch_version(build):
    """The version of the libtorch of a build, "2.13"."""
    cache = (build / "CMakeCache.txt").read_text()
    folder = re.search(r"^CLEAVE_LIBTORCH:\w+=(.*)$", cache, re.MULTILINE)
    if not folder:
        raise Problem(f"{build}/CMakeCache.txt names no CLEAVE_LIBTORCH")
    header = (pathlib.Path(folder[1]) / "include/torch/headeronly/version.h").read_text()
    return ".".join(re.search(rf"define TORCH_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR"))


def add_test(build, folder):
    """Adds the unit tests of GPUs, which find the libraries in lib/."""
    (folder / "tests").mkdir()
    path = folder / "tests/mesh_test"
    shutil.copy(build / "tests/mesh_test", path)
    output("strip", path)
    for name in needed(path):
        plain = re.sub(r"^(libcleave\w*\.so)\..*$", r"\1", name)
        if plain != name:
            output("patchelf", "--replace-needed", name, plain, path)
        if not (SYSTEM.match(name) or LIBTORCH.match(name) or (folder / "lib" / plain).exists()):
            raise Problem(f"mesh_test needs {name}, which the pack does not have")
    output("patchelf", "--set-rpath", "$ORIGIN/../lib", path)


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def make_pack(build, folder):
    if not (build / "libcleave_cuda.so").exists():
        raise Problem(f"{build} has no GPU support; see docs/gpus.md, Requirements")
    stage(build, folder)
    for unused in ("include", "lib/cmake", "share"):
        shutil.rmtree(folder / unused, ignore_errors=True)
    bundle(folder)
    add_test(build, folder)
    shutil.copy(ROOT / "tools/first_gpu.sh", folder)
    shutil.copy(ROOT / "bench/baselines/plain_llama.py", folder)
    version = torch_version(build)
    (folder / "torch-version").write_text(f"{version}\n")
    (folder / "README").write_text(README.format(torch=version))
    if size_of(folder) > MOST_BYTES:
        raise Problem(f"the pack has {size_of(folder)} bytes, more than {MOST_BYTES}; leave something out")


def main(words):
    parser = argparse.ArgumentParser(prog="./run pack-gpu", usage=__doc__.split("usage: ")[1])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/gpu-pack")
    options = parser.parse_args(words)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out.parent, prefix="gpu-pack-") as name:
        made = pathlib.Path(name) / "pack"
        made.mkdir()
        make_pack(options.build.resolve(), made)
        shutil.rmtree(options.out, ignore_errors=True)
        made.rename(options.out)
    print(f"{options.out}: {size_of(options.out) / 2**20:.1f} MiB, for torch {torch_version(options.build.resolve())}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Problem as problem:
        sys.exit(f"pack-gpu: {problem}")
