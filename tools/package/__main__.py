"""usage: ./run package [--check] [--container FOLDER] [--libtorch FOLDER] [--build FOLDER] [--out FOLDER]

Makes a Python wheel, a Debian package and a tarball from build/release in build/packages, without compiling.

--check             then installs the wheel and libtorch from PyPI into a new virtual environment, trains and generates
                    there, and runs what the other two packages hold; prints times and sizes
--container FOLDER  then runs the steps of the Containerfile in FOLDER, a root folder of debootstrap; needs root
--libtorch FOLDER   the same check of the wheel alone, without a network: with this libtorch
"""
import argparse
import pathlib
import sys
import tempfile
import time

import check
import container
from archives import write_deb, write_tarball, write_wheel
from manual import write_manual
from stage import ROOT, Problem, bundle, require_build, stage, version_of

PATTERNS = ("cleave-*.whl", "cleave-*.tar.xz", "cleave_*.deb")


def parsed(words):
    parser = argparse.ArgumentParser(prog="./run package", usage=__doc__.split("usage: ")[1])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--container", type=pathlib.Path)
    parser.add_argument("--libtorch", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/packages")
    return parser.parse_args(words)


def make_packages(options, wheel_only):
    """Returns the paths of the wheel, the tarball and the Debian package; only the wheel if `wheel_only`."""
    version, torch = version_of(options.build), check.wheels()[0].split("==")[1]
    with tempfile.TemporaryDirectory(prefix="cleave-package-") as name:
        scratch = pathlib.Path(name)
        folder = scratch / "staged"
        stage(options.build.resolve(), folder)
        write_manual(options.build / "cleave", folder / "share/man/man1", version)
        deb = [] if wheel_only else [write_deb(folder, options.out, version, scratch / "deb")]
        print(f"bundled: {', '.join(bundle(folder))}")
        wheel = [write_wheel(folder, options.out, version, torch)]
        return wheel + ([] if wheel_only else [write_tarball(folder, options.out, version)]) + deb


def main(words):
    options = parsed(words)
    began = time.monotonic()
    require_build(options.build)  # before packages of an earlier build are removed
    options.out.mkdir(parents=True, exist_ok=True)
    for old in [path for pattern in PATTERNS for path in options.out.glob(pattern)]:
        old.unlink()
    paths = make_packages(options, wheel_only=options.libtorch is not None)
    for path in paths:
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    print(f"made in {time.monotonic() - began:.1f} s", flush=True)
    if options.libtorch:
        check.wheel_with(paths[0], options.libtorch.resolve())
    if options.check:
        check.all_packages(*paths)
    if options.container:
        container.build(options.container.resolve(), options.out)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Problem as problem:
        sys.exit(f"package: {problem}")
