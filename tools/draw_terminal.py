#!/usr/bin/env python3
"""Draws the captured output of a command as the picture of a terminal, an SVG without external fonts.

usage: draw_terminal.py CAPTURE.txt OUTPUT.svg [TITLE]

Lines that begin with `$ ` or `+ ` are commands. Of a series of progress lines (`step ...`) only the first two and the last
two are drawn. Lines above 100 columns are wrapped. The panel is dark and has its own border, so that it can be read on
light and dark pages.
"""
import pathlib
import re
import sys
from xml.sax.saxutils import escape

COLUMNS, FONT_SIZE, LINE_HEIGHT, MARGIN, BAR = 100, 13, 18, 18, 34
CHAR_WIDTH = 7.8  # of a monospace font of this size; textLength makes every font as wide
COLORS = {"command": "#7ee787", "step": "#79c0ff", "plain": "#e6edf3", "rest": "#8b949e"}


def shorten(lines):
    """The lines, with the middle of each series of progress lines replaced by one line."""
    shown, series = [], []
    for line in [*lines, None]:
        if line is not None and line.startswith("step "):
            series.append(line)
            continue
        shown += series if len(series) <= 5 else [*series[:2], "...", *series[-2:]]
        series = []
        if line is not None:
            shown.append(line)
    return shown


def wrap(line):
    """Pieces of at most COLUMNS characters, broken at blanks where there are some; the first keeps its indentation."""
    pieces = []
    while len(line) > COLUMNS:
        blank = line.rfind(" ", COLUMNS // 2, COLUMNS)
        end = blank if blank > 0 else COLUMNS
        pieces.append(line[:end])
        line = "    " + line[end:].lstrip()
    return [*pieces, line]


def kind(line):
    if re.match(r"[$+] ", line):
        return "command"
    if line == "...":
        return "rest"
    return "step" if line.startswith("step ") else "plain"


def text_element(line, color, row):
    width = len(line) * CHAR_WIDTH
    return (f'<text x="{MARGIN}" y="{BAR + MARGIN + row * LINE_HEIGHT}" fill="{color}" textLength="{width:.1f}" '
            f'lengthAdjust="spacingAndGlyphs" xml:space="preserve">{escape(line)}</text>')


def draw(capture, title):
    rows = []
    for line in shorten(capture.expandtabs().rstrip().split("\n")):
        rows += [(piece, COLORS[kind(line)]) for piece in wrap(line)]
    width = 2 * MARGIN + round(COLUMNS * CHAR_WIDTH)
    height = BAR + MARGIN + len(rows) * LINE_HEIGHT
    dots = "".join(f'<circle cx="{MARGIN + 4 + 18 * i}" cy="{BAR // 2}" r="5" fill="{color}"/>'
                   for i, color in enumerate(("#ff5f57", "#febc2e", "#28c840")))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"',
        f'     font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="{FONT_SIZE}">',
        f"<title>{escape(title)}</title>",
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="#0d1117" stroke="#8b949e"/>',
        dots,
        *[text_element(line, color, row) for row, (line, color) in enumerate(rows) if line.strip()],
        "</svg>", ""])


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    title = sys.argv[3] if len(sys.argv) == 4 else "A terminal"
    capture = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    pathlib.Path(sys.argv[2]).write_text(draw(capture, title), encoding="utf-8")


if __name__ == "__main__":
    main()
