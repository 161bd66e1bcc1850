#!/usr/bin/env python3
"""Changes one line of a module at a time, and counts the changes that its tests find.

usage: tools/mutate_lines.py --build build/core [--module format] [--count 40] [--seed 1]

Each change is one of the operators below at a random place: a comparison, a sign, a constant, a condition, a check.
It is built and the module's tests are run; the line is then put back. Prints a line for each change, and the total:
what survived is either a change that changes nothing or a test that is missing. Row T7 of docs/reliability.md.
"""

import argparse
import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "comm": [["comm_test", "--gtest_filter=-Full/*:*Full.*"]],
    "format": [["format_test"], ["hostile_test", "--gtest_filter=Files/*safetensors*:Files/*torch_bin*:Files/*index*"]],
    "text": [["text_test"], ["hostile_test", "--gtest_filter=Files/*csv*:Files/*json*"]],
    "file": [["file_test"], ["format_test"]],
}
OPERATORS = [
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "), (r" != ", " == "),
    (r" \+ ", " - "), (r" - ", " + "), (r" \* ", " + "), (r" && ", " || "), (r" \|\| ", " && "),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"\bif \(", "if (!("), (r"\b0\b", "1"), (r"\b1\b", "2"),
    (r"\+= ", "-= "), (r"CLEAVE_CHECK\(", "CLEAVE_CHECK(true || "),
]


def places(module):
    """Every (file, line number, new line) that an operator makes."""
    found = []
    for path in sorted((ROOT / "cleave" / module).glob("*.cc")):
        if path.name.endswith("_test.cc"):
            continue
        for number, line in enumerate(path.read_text().splitlines()):
            code = line.split("//")[0]
            if not code.strip() or code.lstrip().startswith(("#", "namespace", "constexpr", "using", "template", '"')):
                continue
            for pattern, new in OPERATORS:
                if not re.search(pattern, code) or '"' in code:
                    continue
                changed = re.sub(pattern, new, code, count=1)
                if new == "if (!(":
                    if not re.search(r"\) (\{|return.*;|continue;|break;)\s*$", changed):
                        continue
                    changed = re.sub(r"\) (\{|return.*;|continue;|break;)\s*$", r")) \1", changed)
                found.append((path, number, changed))
    return found


def run(command, seconds):
    """The exit code; 124 when it takes too long."""
    try:
        done = subprocess.run(command, cwd=ROOT, timeout=seconds, check=False, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return 124
    return done.returncode


def verdict(build, module, seconds):
    """What becomes of the change that is in the tree now."""
    programs = sorted({test[0] for test in TESTS[module]})
    if run(["ninja", "-C", str(build), "-j1", *programs], 600) != 0:
        return "refused by the compiler"
    for test in TESTS[module]:
        if run([str(build / "tests" / test[0]), "--gtest_brief=1", "--gtest_fail_fast", *test[1:]], seconds) != 0:
            return "found"
    return "SURVIVED"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, type=Path)
    parser.add_argument("--module", default="format", choices=sorted(TESTS))
    parser.add_argument("--count", default=40, type=int)
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--seconds", default=120, type=int, help="that a test program may take")
    options = parser.parse_args()
    build = (ROOT / options.build).resolve()
    if verdict(build, options.module, options.seconds) != "SURVIVED":
        sys.exit("mutate_lines: the tests fail without any change")
    counts = {}
    chosen = places(options.module)
    random.Random(options.seed).shuffle(chosen)
    for path, number, new in chosen:
        if counts.get("found", 0) + counts.get("SURVIVED", 0) == options.count:
            break
        before = path.read_text()
        lines = before.splitlines(keepends=True)
        lines[number] = new + "\n"
        try:
            path.write_text("".join(lines))
            told = verdict(build, options.module, options.seconds)
        finally:
            path.write_text(before)
        counts[told] = counts.get(told, 0) + 1
        print(f"{told}: {path.relative_to(ROOT)}:{number + 1}: {new.strip()}", flush=True)
    tried = counts.get("found", 0) + counts.get("SURVIVED", 0)
    print(f"{counts.get('found', 0)} of {tried} changes found (module {options.module}, seed {options.seed}, "
          f"{counts.get('refused by the compiler', 0)} more refused by the compiler)")


if __name__ == "__main__":
    main()
