#!/usr/bin/env python3
"""Draws the modules of cleave/ from their #includes, as the Mermaid block of docs/design/architecture.md.

usage: module_graph.py           write the block
       module_graph.py --check   fail if the block is out of date

An arrow A --> B says that A includes B. Arrows that follow from others (A --> B --> C implies A --> C) are left out.
"""
import pathlib
import re
import sys

import check_layers
import cpp_source

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs/design/architecture.md"
BLOCK = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)


def edges():
    """{module: modules that its sources include}, tests excluded."""
    out = {}
    for path in cpp_source.tracked("cleave/*.h", "cleave/*.cc", "cleave/*.cu"):
        module = check_layers.module_of(path)
        if module is None or path.endswith("_test.cc"):
            continue
        used = out.setdefault(module, set())
        used |= {check_layers.module_of(name) for _, name in check_layers.includes(path)} - {None, module}
    return out


def reachable(graph, start):
    seen, todo = set(), list(graph[start])
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += graph[module]
    return seen


def drawn():
    graph = edges()
    lines = ["```mermaid", "flowchart TD"]
    for module in reversed(check_layers.ORDER):
        used = graph.get(module, set())
        implied = set().union(*(reachable(graph, other) for other in used)) if used else set()
        lines += [f"  {module} --> {other}" for other in sorted(used - implied)]
    return "\n".join(lines) + "\n```\n"


def main(words):
    page = PAGE.read_text(encoding="ascii")
    new = BLOCK.sub(lambda _: drawn(), page, count=1)
    if words == ["--check"]:
        if new != page:
            print(f"{PAGE.relative_to(PAGE.parents[2])}: the picture of the modules is out of date; run tools/module_graph.py")
        print(f"module_graph: {'0 problems' if new == page else '1 problem'}")
        return 0 if new == page else 1
    PAGE.write_text(new, encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
