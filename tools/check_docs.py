#!/usr/bin/env python3
"""Checks that every public declaration in a header has a `///`, and that pages show only existing commands and files.

A comment covers the declarations that follow it without an empty line. Fields (covered by their type's comment), structs
named XOptions, enums inside a type, const getters on one line, constructors, overrides, operators, defaulted and deleted
members, forward and using declarations, namespace internal and contract headers (which are tests) need none. In Markdown,
the tests run the blocks ```sh (run_docs.py); in blocks ```console this script checks lines that begin with `$ `: the
program, and the command of `./run` or `cleave`. Links must lead to files of the tree.
"""
import os
import re
import subprocess
import sys

import cpp_source
import run_docs

SKIP = re.compile(
    r"\s*(friend\b|using\s+(namespace\b|[\w:]+\s*$)|static_assert\b|template\s*<\s*>"
    r"|~|,|public:|private:|protected:|typedef\b)"
    r"|.*(=\s*(default|delete)\s*$|\boverride\b|\boperator\b)", re.DOTALL)
OUT_OF_LINE = re.compile(r"[^(]*\b\w+\s*(<[^()]*>)?::~?\w+\s*\(", re.DOTALL)
HIDDEN = re.compile(r"\bnamespace\s*($|\w*(internal|detail)\b)|\bnamespace\s+[\w:]*::(internal|detail)\b")


FORWARD = re.compile(r"\s*(class|struct|enum(\s+class)?)\s+\w+(\s*:\s*\w+)?\s*$")
GETTER = re.compile(r".*\(\)\s*const(\s+noexcept)?(\s*=\s*0)?\s*$", re.DOTALL)


def is_documented(statement, lines):
    if lines[statement.line - 2].lstrip().startswith("///"):
        return True
    # `///<` on the declaration's own lines, not inside the braces it opens.
    last = statement.scope.open_line if statement.scope and statement.scope.kind != "value" else statement.end
    return any("///<" in line for line in lines[statement.line - 1:last])


def needs_none(statement, owner):
    """Whether the declaration needs no comment. `owner`: the enclosing type, or None."""
    text = " ".join(statement.text.split())
    if SKIP.match(text) or (statement.scope is None and FORWARD.match(text)):
        return True
    if re.match(r"struct \w*Options\b", text) or (owner and statement.scope and statement.scope.kind == "enum"):
        return True
    if owner is None:
        return OUT_OF_LINE.match(text) is not None
    is_constructor = re.match(rf"(\[\[\w+\]\]\s*)?(explicit\s+|constexpr\s+)*{owner}\s*\(", text)
    is_getter = GETTER.match(text) and statement.line == statement.end
    is_type = statement.scope is not None and statement.scope.kind in ("class", "enum")
    is_field = "(" not in re.sub(r"alignas\([^)]*\)|=.*", "", text) and not is_type and not text.startswith("using ")
    return bool(is_constructor or is_getter or is_field)


def undocumented(scope, lines, owner=None, is_public=True):
    """Yields the public statements of a scope and its types that no comment covers."""
    covered_to = None
    for statement in scope.statements:
        text = " ".join(statement.text.split())
        if text in ("public:", "private:", "protected:"):
            is_public = text == "public:"
            continue
        inner = statement.scope
        if inner is not None and inner.kind == "namespace":
            if not HIDDEN.search(text):
                yield from undocumented(inner, lines)
            continue
        if not is_public:
            continue
        documented = is_documented(statement, lines) or covered_to in (statement.line - 1, statement.line)
        if documented:
            covered_to = statement.end
        elif not needs_none(statement, owner):
            yield statement.line, text
        if inner is not None and inner.kind == "class":
            name = re.search(r"\b(?:class|struct|union)\s+(?:\[\[\w+\]\]\s*)?(\w+)", text)
            yield from undocumented(inner, lines, name.group(1) if name else "", not re.search(r"\bclass\b", text))


def check_header(path):
    text = cpp_source.read(path)
    lines = text.split("\n")
    for line, what in undocumented(cpp_source.parse(text), lines):
        yield f"{path}:{line}: no /// for: {what[:70]}"
    for number, line in enumerate(lines):
        if re.match(r"#define\s+\w", line) and not lines[number - 1].startswith("///"):
            yield f"{path}:{number + 1}: no /// for: {line[:70]}"


def check_command(words, commands):
    """What is wrong with a shown command line, or None."""
    while words and (re.match(r"\w+=", words[0]) or words[0] in ("sudo", "time")):
        words = words[1:]
    if not words:
        return None
    if words[0] == "./run" and len(words) > 1 and words[1] not in commands:
        return f"./run has no command '{words[1]}'"
    if os.path.basename(words[0]) == "cleave" and len(words) > 1 and not words[1].startswith("-"):
        if not any((cpp_source.ROOT / "cleave/cli" / name).exists() for name in (f"{words[1]}.cc", f"{words[1]}_command.cc")):
            return f"cleave has no command '{words[1]}'"
    return None


def check_page(path, commands):
    text = cpp_source.read(path)
    for start, block in run_docs.blocks(cpp_source.ROOT / path, "console"):
        for number, line in enumerate(block.splitlines(), start):
            problem = check_command(line[2:].split(), commands) if line.startswith("$ ") else None
            if problem:
                yield f"{path}:{number}: {problem}"
    for start, block in run_docs.blocks(cpp_source.ROOT / path, "sh"):
        result = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True)
        if result.returncode != 0:
            yield f"{path}:{start}: not a shell script: {result.stderr.strip()}"
    folder = (cpp_source.ROOT / path).parent
    # Blank the code, where a lambda looks like a link; keep its lines, so that line numbers are right.
    prose = re.sub(r"^```.*?^```", lambda code: "\n" * code.group().count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    for match in re.finditer(r"\]\(([^)#\s]+)[^)]*\)", prose):
        target = match.group(1)
        if not re.match(r"\w+:", target) and not (folder / target).exists():
            yield f"{path}:{prose.count(chr(10), 0, match.start()) + 1}: {target} does not exist"


def main():
    headers = [path for path in cpp_source.tracked("cleave/*.h") if not re.search(r"contract\w*\.h$", path)]
    pages = cpp_source.tracked("*.md")
    usage = subprocess.run(["bash", str(cpp_source.ROOT / "run")], check=True, capture_output=True, text=True).stdout
    commands = set(re.findall(r"^  (\w+)", usage, re.MULTILINE))
    problems = [problem for path in headers for problem in check_header(path)]
    problems += [problem for path in pages for problem in check_page(path, commands)]
    print("\n".join(problems + [f"check_docs: {len(headers)} headers, {len(pages)} pages, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
