#!/usr/bin/env python3
"""Runs clang-tidy on changed files, or with --full on every source that needs no libtorch and the changed ones that do (a
file with libtorch takes about a minute, the others seconds). Unchanged files are checked without the static analyzer,
which takes two thirds of the time.

usage: tidy.py [--full] [--jobs N] [--limit SECONDS] [FILE...]

Changed files are the uncommitted ones and those changed since the merge base with the upstream branch, or in the last ten
commits if there is nothing new. No file is started after the limit (480 s); the remaining files are listed.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import time

import check_layers
import cpp_source

BUILD = cpp_source.ROOT / "build/lint"
FOLDER = cpp_source.ROOT / "build/tidy"
# clang cannot use GCC's precompiled header, for which the header itself is used, and may have no omp.h.
GCC_ONLY = {"-fopenmp", "-fpch-preprocess", "-Winvalid-pch", "-fno-fat-lto-objects", "-Wno-restrict"}


def git(*words):
    result = subprocess.run(["git", *words], cwd=cpp_source.ROOT, capture_output=True, text=True)
    return result.stdout.split() if result.returncode == 0 else []


def changed_files():
    base = git("merge-base", "HEAD", "@{upstream}")
    head = git("rev-parse", "HEAD")
    if not base or base == head:
        base = git("rev-parse", "--verify", "HEAD~10") or head
    return set(git("diff", "--name-only", base[0])) | set(git("ls-files", "-o", "--exclude-standard")) if base else set()


def translate(words):
    """The words of a compile command without GCC-only flags."""
    out = []
    for index, word in enumerate(words):
        if word.endswith("ccache") or word in GCC_ONLY:
            continue
        if word.endswith("cmake_pch.hxx") and words[index - 1] == "-include":
            word = str(cpp_source.ROOT / "cmake/torch_pch.h")
        out.append(word)
    return out


def write_commands():
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    for entry in entries:
        entry["command"] = " ".join(translate(entry["command"].split()))
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "compile_commands.json").write_text(json.dumps(entries, indent=1))
    return {os.path.relpath(entry["file"], cpp_source.ROOT) for entry in entries}


def affected(changed, sources, graph):
    """The changed sources, and the sources that directly include a changed header."""
    return {path for path in sources
            if path in changed or any(name in changed for _, name in graph.get(path, []) if name.endswith(".h"))}


def newest_first(paths):
    """Sorted by the last of the newest commits that changed them; the others follow by name."""
    order = {path: place for place, path in reversed(list(enumerate(git("log", "-300", "--format=", "--name-only"))))}
    return sorted(paths, key=lambda path: (order.get(path, len(order) + 1), path))


def select(full):
    """The paths to check, most important first in case of a limit, and the changed ones."""
    sources = write_commands()
    graph = {path: check_layers.includes(path) for path in cpp_source.tracked("*.h", "*.cc")}
    changed = affected(changed_files(), sources & set(graph), graph)
    # Tests are checked only if named: clang-tidy attributes gtest's macros to the test.
    product = {path for path in sources & set(graph) if not path.endswith("_test.cc") and not path.startswith("tests/")}
    free = {path for path in product if not check_layers.torch_chain(path, graph, set())}
    rest = free - changed if full else set()
    return newest_first(free & changed) + newest_first(rest) + newest_first((changed & product) - free), changed


def tidy(path, is_whole, deadline):
    if time.monotonic() > deadline:
        return path, None, ""
    less = [] if is_whole else ["--checks=-clang-analyzer-*"]
    result = subprocess.run(["clang-tidy-14", "--quiet", *less, "-p", str(FOLDER), path], cwd=cpp_source.ROOT,
                            stdin=subprocess.DEVNULL, capture_output=True, text=True)
    noise = "" if result.returncode == 0 else result.stdout + result.stderr
    return path, result.returncode, noise.replace(str(cpp_source.ROOT) + "/", "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=480)
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    paths, whole = select(arguments.full)
    if arguments.files:
        paths = whole = arguments.files
    deadline = time.monotonic() + arguments.limit
    done, failed, left = 0, 0, []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for path, status, noise in pool.map(lambda path: tidy(path, path in whole, deadline), paths):
            if status is None:
                left.append(path)
                continue
            done += 1
            failed += status != 0
            if noise:
                print(noise, flush=True)
    for path in left:
        print(f"{path}:0: not checked: the limit of {arguments.limit:.0f} s was reached")
    print(f"tidy: {done} files checked, {failed} with findings, {len(left)} left for lack of time")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
