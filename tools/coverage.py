#!/usr/bin/env python3
"""Prints the line coverage of a module by its tests.

usage: coverage.py [--torch] [MODULE...]

Modules: base, file, text, format, comm (default: comm and format), and checkpoint with --torch (needs CLEAVE_LIBTORCH).

The sources of these modules are compiled by Clang with counters, all others as in the release build, whose objects are in
the compiler's cache. The counters are in a memory-mapped file, so that processes that end by _exit, abort or SIGKILL are
counted too. Vector code is compiled for one CPU target, so that every line is compiled once. Processes of another user are
not counted: they may not write the file. Failed tests are printed; the lines that they reach count.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import cpp_source
import mutation
import tidy

FOLDER = cpp_source.ROOT / "build/coverage"
PROFILE = FOLDER / "profile"
VERSION = "14"  # of Clang
MODULES = ["base", "file", "text", "format", "comm", "checkpoint"]
# %m: one file per library, shared by all processes; %c: counters are memory-mapped from the file.
FLAGS = [f"-fprofile-instr-generate={PROFILE}/%m%c.profraw", "-fcoverage-mapping", "-fprofile-update=atomic", "-mllvm",
         "-runtime-counter-relocation", "-DHWY_COMPILE_ONLY_STATIC"]


def module_of(path):
    """The module of a measured source, otherwise ""."""
    match = re.fullmatch(rf"{re.escape(str(cpp_source.ROOT))}/cleave/({'|'.join(MODULES)})/.*(?<!_test)\.(cc|h)", str(path))
    return match.group(1) if match else ""


def counted(words):
    """The compile command `words`, by Clang with counters if its source is measured."""
    if not module_of(words[-1]):
        return words
    return [f"clang++-{VERSION}", *FLAGS, *tidy.translate(words, needs_torch=True)[1:]]


def build(torch, targets):
    # At the same depth as the release build: the compiler's cache uses paths relative to the build folder.
    folder = cpp_source.ROOT / "build" / ("coverage-torch" if torch else "coverage-core")
    runtime = subprocess.run([f"clang-{VERSION}", "-print-runtime-dir"], check=True, capture_output=True, text=True).stdout
    library = pathlib.Path(runtime.strip()) / f"libclang_rt.profile-{os.uname().machine}.a"
    subprocess.run(["cmake", "-S", str(cpp_source.ROOT), "--preset", "release", "-B", str(folder), "-DCLEAVE_EXAMPLES=OFF",
                    f"-DCLEAVE_TORCH={'ON' if torch else 'OFF'}", f"-DCLEAVE_LIBTORCH={os.environ.get('CLEAVE_LIBTORCH', '')}",
                    f"-DCMAKE_CXX_COMPILER_LAUNCHER=python3;{pathlib.Path(__file__).resolve()};--compile",
                    "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-u,__llvm_profile_runtime",
                    # After the objects: its symbols for the counters' place are weak, and the first definition wins.
                    f"-DCMAKE_CXX_STANDARD_LIBRARIES={library}"],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", str(folder), *targets], check=True, stdout=subprocess.DEVNULL)
    return folder


def run(binary):
    began = time.monotonic()
    result = subprocess.run([str(binary), "--gtest_brief=1", "--gtest_filter=-Full/*:*Full.*"], cwd=binary.parent,
                            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    failed = dict.fromkeys(re.findall(r"^\[  FAILED  \] ([\w./]+)", result.stdout, re.MULTILINE))
    print(f"{binary.name}: exit {result.returncode} after {time.monotonic() - began:.0f} s {' '.join(failed)}", flush=True)


def lines_of(text):
    """For every file of an lcov trace: line numbers, and whether they were reached."""
    found, lines = {}, {}
    for word, _, rest in (line.partition(":") for line in text.splitlines()):
        if word == "SF":
            lines = found.setdefault(rest, {})
        elif word == "DA":
            number, count = (int(value) for value in rest.split(",")[:2])
            lines[number] = lines.get(number, False) or count > 0
    return found


def ranges(numbers):
    """ "3, 7-9" of the sorted numbers 3, 7, 8, 9."""
    found = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def report(found, module):
    """The report of a module: its lines, the reached ones, and the numbers of the others."""
    num_lines, num_reached, out = 0, 0, []
    for path, lines in sorted(found.items()):
        if module_of(path) != module:
            continue
        missed = sorted(number for number, is_reached in lines.items() if not is_reached)
        num_lines, num_reached = num_lines + len(lines), num_reached + len(lines) - len(missed)
        if missed:
            out.append(f"  {os.path.relpath(path, cpp_source.ROOT)}: {ranges(missed)}")
    return [f"{module}: {num_reached} of {num_lines} lines reached ({100 * num_reached / max(num_lines, 1):.1f} %)", *out]


def main():
    if sys.argv[1:2] == ["--compile"]:
        words = ["ccache", *counted(sys.argv[2:])]
        os.execvp(words[0], words)
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("modules", nargs="*", choices=[[], *MODULES])
    arguments = parser.parse_args()
    modules = arguments.modules or ["comm", "format"]
    tests = list(dict.fromkeys(test for module in modules for test in mutation.TESTS[module]))
    folder = build(arguments.torch, tests)
    shutil.rmtree(PROFILE, ignore_errors=True)
    for test in tests:
        run(folder / "tests" / test)
    profile = FOLDER / "all.profdata"
    subprocess.run([f"llvm-profdata-{VERSION}", "merge", "-o", str(profile), *map(str, PROFILE.iterdir())], check=True)
    libraries = sorted(str(path) for path in folder.glob("libcleave*.so") if path.stem != "libcleave_sentencepiece")
    objects = [word for path in libraries for word in ("-object", path)][1:]
    trace = subprocess.run([f"llvm-cov-{VERSION}", "export", "-format=lcov", f"-instr-profile={profile}", *objects],
                           check=True, capture_output=True, text=True).stdout
    for module in modules:
        print("\n".join(report(lines_of(trace), module)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
