#!/usr/bin/env python3
"""Runs clang-tidy on changed files, or with --full on every source that needs no libtorch and the changed ones that do (a
file with libtorch takes about a minute, the others seconds). Unchanged files are checked without the static analyzer,
which takes two thirds of the time.

usage: tidy.py [--full] [--jobs N] [--limit SECONDS] [FILE...]

Changed files are the uncommitted ones and those changed since the merge base with the upstream branch, or in the last ten
commits if there is nothing new. No file is started after the limit (480 s); the remaining files are listed. A file without
findings is not checked again while it, its headers and its command stay the same (~/.cache/cleave/tidy).
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

import check_layers
import cpp_source

BUILD = cpp_source.ROOT / "build/lint"
FOLDER = cpp_source.ROOT / "build/tidy"
USER_CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
CACHE = pathlib.Path(os.environ.get("CLEAVE_CACHE") or USER_CACHE / "cleave") / "tidy"  # as in tools/setup.sh
# clang cannot use GCC's precompiled header, for which the header itself is used, and may have no omp.h.
GCC_ONLY = {"-fopenmp", "-fpch-preprocess", "-Winvalid-pch", "-fno-fat-lto-objects", "-Wno-restrict"}
CLANG = ["--extra-arg=-Wno-unknown-warning-option"]  # sources turn off warnings that only GCC has


def git(*words):
    result = subprocess.run(["git", *words], cwd=cpp_source.ROOT, capture_output=True, text=True)
    return result.stdout.split() if result.returncode == 0 else []


def changed_files():
    base = git("merge-base", "HEAD", "@{upstream}")
    head = git("rev-parse", "HEAD")
    if not base or base == head:
        base = git("rev-parse", "--verify", "HEAD~10") or head
    return set(git("diff", "--name-only", base[0])) | set(git("ls-files", "-o", "--exclude-standard")) if base else set()


def translate(words, needs_torch):
    """A compile command's words without GCC-only flags, and without libtorch's headers (20 s) if the file needs none."""
    out = []
    for word in words:
        if word.endswith("ccache") or word in GCC_ONLY:
            continue
        if word.endswith("cmake_pch.hxx") and out[-1] == "-include":
            if not needs_torch:
                out.pop()
                continue
            word = str(cpp_source.ROOT / "cmake/torch_pch.h")
        out.append(word)
    return out


def needs_torch(path, graph):
    return check_layers.torch_chain(path, graph, set()) is not None


def write_commands(graph):
    """The compile command of each source, which clang-tidy also finds in FOLDER."""
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    commands = {}
    for entry in entries:
        path = os.path.relpath(entry["file"], cpp_source.ROOT)
        entry["command"] = commands[path] = " ".join(translate(entry["command"].split(), needs_torch(path, graph)))
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "compile_commands.json").write_text(json.dumps(entries, indent=1))
    return commands


def affected(changed, sources, graph):
    """The changed sources, and the sources that directly include a changed header."""
    return {path for path in sources
            if path in changed or any(name in changed for _, name in graph.get(path, []) if name.endswith(".h"))}


def newest_first(paths):
    """Sorted by the last of the newest commits that changed them; the others follow by name."""
    order = {path: place for place, path in reversed(list(enumerate(git("log", "-300", "--format=", "--name-only"))))}
    return sorted(paths, key=lambda path: (order.get(path, len(order) + 1), path))


def with_headers(path, graph, seen):
    """Adds to `seen` the file and all its headers of this project."""
    if path in graph and path not in seen:
        seen.add(path)
        for _, name in graph[path]:
            with_headers(name, graph, seen)
    return seen


def select(full, sources, graph):
    """The paths to check, most important first in case of a limit, and the changed ones."""
    changed = affected(changed_files(), set(sources) & set(graph), graph)
    # Tests are checked only if named: clang-tidy attributes gtest's macros to the test.
    product = {path for path in set(sources) & set(graph) if not path.endswith("_test.cc") and not path.startswith("tests/")}
    free = {path for path in product if not needs_torch(path, graph)}
    rest = free - changed if full else set()
    return newest_first(free & changed) + newest_first(rest) + newest_first((changed & product) - free), changed


class Checks:
    """Runs clang-tidy on files until the deadline."""

    def __init__(self, commands, graph, whole, deadline):
        self.commands, self.graph, self.whole, self.deadline = commands, graph, whole, deadline

    def mark_of(self, path, less):
        """The file that exists once clang-tidy found nothing for these inputs."""
        parts = [(cpp_source.ROOT / ".clang-tidy").read_text(), *less, self.commands.get(path, "").replace(str(cpp_source.ROOT), "")]
        parts += [name + "\n" + cpp_source.read(name) for name in sorted(with_headers(path, self.graph, set()))]
        return CACHE / hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def run(self, path):
        """(path, exit status or None if there was no time, findings)"""
        less = [] if path in self.whole else ["--checks=-clang-analyzer-*"]
        mark = self.mark_of(path, less)
        if mark.exists():
            return path, 0, ""
        if time.monotonic() > self.deadline:
            return path, None, ""
        result = subprocess.run(["clang-tidy-14", "--quiet", *less, *CLANG, "-p", str(FOLDER), path], cwd=cpp_source.ROOT,
                                stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if result.returncode == 0:
            mark.touch()
            return path, 0, ""
        return path, result.returncode, (result.stdout + result.stderr).replace(str(cpp_source.ROOT) + "/", "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=float, default=480)
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    graph = {path: check_layers.includes(path) for path in cpp_source.tracked("*.h", "*.cc")}
    commands = write_commands(graph)
    paths, whole = select(arguments.full, commands, graph)
    if arguments.files:
        paths = whole = arguments.files
    checks = Checks(commands, graph, whole, time.monotonic() + arguments.limit)
    done, left, findings = 0, [], []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for path, status, noise in pool.map(checks.run, paths):
            if status is None:
                left.append(path)
                continue
            done += 1
            if status != 0:
                findings.append(noise)
    if left:
        print(f"tidy: the limit of {arguments.limit:.0f} s was reached before these files:", *left)
    print(*findings, sep="\n")
    print(f"tidy: {done} files checked, {len(findings)} with findings, {len(left)} left for lack of time")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
