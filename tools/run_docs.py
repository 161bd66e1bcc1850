#!/usr/bin/env python3
"""Runs the ```sh blocks of Markdown pages unchanged, so that no page shows a command that does not work.

usage: run_docs.py --build BUILD_FOLDER [PAGE...]    (default: README.md and all pages below docs/)

Prints each block with its exit code and output, so that stdout is a log; stderr has one line per page.

The blocks of a page run in order in a temporary folder with build/ as after `./run build`. Empty files and folders take the
other names that a clone has: a command must work without their contents, as in an empty folder, and must not use their names
for its output.
A block ```text directly after shows lines that its output must have. Blocks ```console are not run; check_docs.py checks
their commands.
"""
import argparse
import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

LIMIT_S = 110
FENCE = re.compile(r"^```(\S*)\s*$")


def fenced(page):
    """Yields (language, line number of the first line, lines, whether a block ends directly before it)."""
    block, follows = None, False
    for number, line in enumerate(pathlib.Path(page).read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if block is None and fence:
            block = (fence.group(1), number + 1, [], follows)
        elif block is not None and line.strip() == "```":
            yield block
            block, follows = None, True
        elif block is not None:
            block[2].append(line)
        else:
            follows = follows and not line.strip()
    if block is not None:
        raise SystemExit(f"{page}:{block[1]}: this block is never closed")


def blocks(page, language):
    """Yields (line number of the first line, text) of each fenced block in `language`."""
    for kind, start, lines, _ in fenced(page):
        if kind == language:
            yield start, "\n".join(lines) + "\n"


def shown_output(page):
    """{line number of a block ```sh: the lines of the block ```text directly after it}."""
    return {command[1]: lines for command, (kind, _, lines, follows) in itertools.pairwise(fenced(page))
            if command[0] == "sh" and kind == "text" and follows}


def run_block(page, line, text, folder, shown):
    """Runs the block; whether it succeeds and prints the lines `shown`."""
    process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", text], cwd=folder, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0] + f"\nstopped after {LIMIT_S} s"
    print(f"{page}:{line}: exit {process.returncode}\n{text}{output}")
    missing = [row for row in shown if row not in output.splitlines()]
    for row in missing:
        print(f"{page}:{line}: the page shows a line that was not printed: {row}")
    return process.returncode == 0 and not missing


def make_folder(folder, root, build):
    (folder / "build").mkdir()
    for name in ("cleave", "examples"):
        (folder / "build" / name).symlink_to(build / name)
    (folder / "build/release").symlink_to(build)
    for path in root.iterdir():
        if path.is_dir() and path.name not in ("build", "install", "out") and not path.name.startswith("."):
            (folder / path.name).mkdir()
        elif path.is_file() and not path.name.startswith("."):
            (folder / path.name).touch()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("pages", nargs="*")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    root = pathlib.Path(__file__).resolve().parent.parent
    pages = arguments.pages or ["README.md", *sorted(str(page.relative_to(root)) for page in root.glob("docs/**/*.md"))]
    count, failed = 0, []
    for page in pages:
        with tempfile.TemporaryDirectory(prefix="cleave-docs-") as folder:
            make_folder(pathlib.Path(folder), root, build)
            shown = shown_output(root / page)
            for line, text in blocks(root / page, "sh"):
                count += 1
                if not run_block(page, line, text, folder, shown.get(line, [])):
                    failed.append(f"{page}:{line}")
        print(f"{page}: done", file=sys.stderr)
    print(f"{count} blocks of {len(pages)} pages run, {len(failed)} failed", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
