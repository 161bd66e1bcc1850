#!/usr/bin/env python3
"""Files of at most 600 lines (half of them at most 150, nine in ten at most 350), function bodies of at most 60 lines,
at most 6 parameters, and no two adjacent bool parameters. Functions are found by their braces. The answers of other libraries
in tests/golden take less than 2 MB of the repository, which compresses each file."""
import re
import sys
import zlib

import cpp_source

MAX_FILE, MAX_MEDIAN, MAX_P90, MAX_FUNCTION, MAX_PARAMETERS = 600, 150, 350, 60, 6
MAX_GOLDEN_BYTES = 2_000_000
# Generated or legal text, and data.
EXEMPT = re.compile(r"(^|/)(LICENSE|NOTICE)$|/(golden|corpus)/|\.(safetensors|bin|json|jsonl|model)$")
ADJACENT_BOOLS = re.compile(r"\bbool\s+\w+\s*(=\s*\w+\s*)?,\s*(const\s+)?bool\s+\w+")


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def parameters(head):
    """The number of parameters of a function head, by the commas in its first parenthesis, outside of brackets."""
    if re.match(r"\s*TEST(_F|_P)?\b|.*\boperator\s*\(\s*\)", head, re.DOTALL) or "(" not in head:
        return 0
    depth, count, seen = 0, 0, False
    for char in head[head.index("("):].replace("->", "  "):
        if char in "(<[{":
            depth += 1
        elif char in ")>]}":
            depth -= 1
            if depth == 0:
                break
        elif char == "," and depth == 1:
            count += 1
        elif not char.isspace():
            seen = True
    return count + 1 if seen else 0


def check_cpp(path, text):
    root = cpp_source.parse(text)
    for statement, parent in cpp_source.walk(root):
        if parent.kind not in ("namespace", "class") or "(" not in statement.text:
            continue
        name = " ".join(statement.text.split())[:60]
        if ADJACENT_BOOLS.search(statement.text):
            yield statement.line, f"two adjacent bool parameters: {name}"
        is_function = statement.scope is not None and statement.scope.kind == "function"
        if not is_function:
            continue
        if parameters(statement.text) > MAX_PARAMETERS:
            yield statement.line, f"{parameters(statement.text)} parameters (limit {MAX_PARAMETERS}): {name}"
        lines = statement.scope.close_line - statement.scope.open_line + 1
        if lines > MAX_FUNCTION:
            yield statement.line, f"function of {lines} lines (limit {MAX_FUNCTION}): {name}"


def golden_bytes():
    return sum(len(zlib.compress((cpp_source.ROOT / path).read_bytes())) for path in cpp_source.tracked("tests/golden"))


def main():
    problems, sizes = [], []
    if golden_bytes() >= MAX_GOLDEN_BYTES:
        problems.append(f"tests/golden:0: {golden_bytes()} bytes after compression (limit {MAX_GOLDEN_BYTES})")
    for path in cpp_source.tracked():
        if EXEMPT.search(path):
            continue
        text = cpp_source.read(path)
        lines = text.count("\n")
        if lines > MAX_FILE:
            problems.append(f"{path}:{lines}: file of {lines} lines (limit {MAX_FILE})")
        if path.endswith((".h", ".cc", ".cu")):
            sizes.append(lines)
            problems += [f"{path}:{line}: {what}" for line, what in check_cpp(path, text)]
    if sizes:
        median, p90 = percentile(sizes, 0.5), percentile(sizes, 0.9)
        if median > MAX_MEDIAN:
            problems.append(f"cleave:0: the median C++ file has {median} lines (limit {MAX_MEDIAN})")
        if p90 > MAX_P90:
            problems.append(f"cleave:0: one C++ file in ten has {p90} lines or more (limit {MAX_P90})")
        print(f"check_sizes: {len(sizes)} C++ files, median {median} lines, 90 % under {p90 + 1}, longest {max(sizes)}")
    print("\n".join(problems + [f"check_sizes: {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
