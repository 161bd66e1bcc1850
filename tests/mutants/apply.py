#!/usr/bin/env python3
"""usage: apply.py [OUT]

Checks that every mutant of faults.diff applies to the sources. With OUT, writes the sources with all mutants below that
folder and prints their paths, one per line. CMake runs it for builds with CLEAVE_MUTANTS, ./run lint without OUT.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = pathlib.Path("tests/mutants/faults.diff")
HEADER = '#include "tests/mutants/mutant.h"\n'


class Block:
    """One edit of a source file: a patch without line numbers."""

    def __init__(self, name, path):
        self.name, self.path, self.lines = name, path, []

    def fail(self, problem):
        sys.exit(f"{TABLE}: mutant {self.name}: {self.path} {problem}")

    def edits(self, source):
        """The edits of the lines `source`: (first line, one after the last, new lines)."""
        before = [line[1:] for line in self.lines if line[0] != "+"]
        places = [at for at in range(len(source)) if source[at:at + len(before)] == before]
        if len(places) != 1:
            self.fail(f"has these lines {len(places)} times; expected once:\n" + "\n".join(before))
        at, found = places[0], []
        for line in self.lines:
            if line[0] != " ":
                if not found or found[-1][1] != at:
                    found.append((at, at, []))
                begin, end, added = found[-1]
                found[-1] = (begin, end + (line[0] == "-"), added + [line[1:]] * (line[0] == "+"))
            at += line[0] != "+"
        return found


def read_blocks(text):
    """The blocks of the table, in its order."""
    blocks, is_open = [], False
    for number, line in enumerate(text.splitlines(), 1):
        header = re.fullmatch(r"@@ ([a-z0-9_.]+) (cleave/[\w/]+\.cc)", line)
        if header:
            blocks.append(Block(*header.groups()))
        elif is_open and line[:1] in ("+", "-", " "):
            blocks[-1].lines.append(line)
        elif line and not (line[0] == "#" and not is_open):
            sys.exit(f"{TABLE}:{number}: expected '@@ NAME cleave/FILE.cc', or a line of a block that begins with ' ', '-' or '+'")
        is_open = bool(line) and line[0] != "#"
    return blocks


def check_names(blocks):
    """Every mutant asks for its own name, and for no other."""
    asked = {}
    for block in blocks:
        added = "\n".join(line for line in block.lines if line[0] == "+")
        asked.setdefault(block.name, set()).update(re.findall(r'mutant_enabled\("([^"]*)"\)', added))
    for name, names in asked.items():
        if names != {name}:
            sys.exit(f'{TABLE}: mutant {name}: its added lines ask for {sorted(names)}; expected mutant_enabled("{name}")')


def mutated(path, blocks):
    """The text of the source with the edits of these blocks."""
    if not (ROOT / path).is_file():
        blocks[0].fail("does not exist")
    source = (ROOT / path).read_text(encoding="utf-8").split("\n")
    edits = [(*edit, block) for block in blocks for edit in block.edits(source)]
    edits.sort(key=lambda edit: edit[:2])
    for (_, end, _, first), (begin, _, _, second) in zip(edits, edits[1:]):
        if begin < end:
            second.fail(f"is changed at line {begin + 1} by mutant {first.name} too")
    for begin, end, added, _ in reversed(edits):
        source[begin:end] = added
    return HEADER + "\n".join(source)


def main(out=None):
    if out is not None and out.startswith("-"):
        sys.exit(f"{out}: not a folder's name\n{__doc__}")
    blocks = read_blocks((ROOT / TABLE).read_text(encoding="utf-8"))
    check_names(blocks)
    for path in sorted({block.path for block in blocks}):
        text = mutated(path, [block for block in blocks if block.path == path])
        if out:
            copy = pathlib.Path(out) / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.is_file() or copy.read_text(encoding="utf-8") != text:
                copy.write_text(text, encoding="utf-8")
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
