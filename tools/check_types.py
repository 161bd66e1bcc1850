#!/usr/bin/env python3
"""No two types share one qualified name: the one-definition rule, which neither the compiler nor the linker checks.

Types in anonymous namespaces and in functions do not count; nor do two builds of one type, one of which is compiled.
A module has an inline namespace of its own, so that cleave::nn::Linear is also cleave::Linear. Names count without it: two
modules that both declare a `Linear` would make cleave::Linear ambiguous.
"""
import re
import sys

import cpp_source

NAME = re.compile(r"\b(?:class|struct|union|enum(?:\s+class|\s+struct)?)\s+(?:\[\[[^\]]*\]\]\s*)?([A-Za-z_]\w*(?:::\w+)*)")
TEMPLATE = re.compile(r"\btemplate\s*<(?:[^<>]|<[^<>]*>)*>")
SPECIALIZATION = re.compile(r"^\s*template\s*<\s*>|\b(?:class|struct)\s+\w+\s*<")
# Compiled instead of each other: programs of their own, and files that CMake chooses between.
PROGRAMS = re.compile(r"^(examples|bench|tests)/|_test\.cc$|_plugin\.cc$")
# A function is called generate. The program has no names for others.
NAMESPACES = {"generate": "inline generation", "cli": "cli"}


def types_of(scope, prefix=""):
    """(qualified name, line) of each type that is defined in namespaces and classes below `scope`."""
    for statement in scope.statements:
        if statement.scope is None:
            continue
        if statement.scope.kind == "namespace":
            name = re.search(r"\bnamespace\s+([\w: ]+)", statement.text)
            inner = re.sub(r"\binline \w+(::)?", "", name.group(1)).strip(" :") if name else ""
            # An anonymous namespace has no name.
            if name and name.group(1).strip():
                yield from types_of(statement.scope, f"{prefix}{inner}::" if inner else prefix)
        elif statement.scope.kind in ("class", "enum") and not SPECIALIZATION.search(statement.text):
            name = NAME.search(TEMPLATE.sub("", statement.text))
            if name:
                yield prefix + name.group(1), statement.line
                yield from types_of(statement.scope, f"{prefix}{name.group(1)}::")


def duplicates(texts):
    """Problems of {path: text}: types that are defined in two places."""
    places = {}
    for path, text in texts.items():
        for name, line in types_of(cpp_source.parse(text)):
            places.setdefault(name, []).append(f"{path}:{line}")
    return [f"{there[1]}: {name} is defined at {there[0]} too; rename one, or put it into an anonymous namespace"
            for name, there in sorted(places.items()) if len(there) > 1]


def wrong_namespaces(texts):
    """Problems of {path: text}: files of a module that declare names in cleave itself."""
    problems = []
    for path, text in texts.items():
        parts = path.split("/")
        if parts[0] != "cleave" or len(parts) < 3:
            continue
        name = NAMESPACES.get(parts[1], f"inline {parts[1]}")
        problems += [f"{path}:{text.count(chr(10), 0, match.start()) + 1}: should be namespace cleave::{name}"
                     for match in re.finditer(r"^namespace cleave \{", text, re.MULTILINE)]
    return problems


def main():
    paths = [path for path in cpp_source.tracked("*.h", "*.cc", "*.cu") if not PROGRAMS.search(path)]
    texts = {path: cpp_source.read(path) for path in paths}
    problems = duplicates(texts) + wrong_namespaces(texts)
    print("\n".join(problems + [f"check_types: {len(paths)} files, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
