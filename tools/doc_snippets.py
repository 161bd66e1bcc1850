#!/usr/bin/env python3
"""Writes the ```cpp blocks of a Markdown page as one C++ file, to be compiled.

usage: doc_snippets.py PAGE OUTPUT.cc

Lines with #include come first. The rest follows in the page's order, in one namespace; errors name the page's lines.
"""
import pathlib
import sys

import run_docs


def as_source(page):
    includes, body = [], []
    for first, text in run_docs.blocks(page, "cpp"):
        lines = text.splitlines()
        includes += [line for line in lines if line.startswith("#include")]
        body.append(f'#line {first} "{page}"')
        body += ["" if line.startswith("#include") else line for line in lines]
    return "\n".join([*includes, "namespace doc_snippets {", *body, "}  // namespace doc_snippets"]) + "\n"


def main():
    page, output = sys.argv[1:]
    pathlib.Path(output).write_text(as_source(page), encoding="utf-8")


if __name__ == "__main__":
    main()
