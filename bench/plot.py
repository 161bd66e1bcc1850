"""Bar charts as SVG: one panel per measurement, one bar per program.

usage: plot.py PAGE.md    draws the column `ratio` of the page's first table as PAGE-ratios.svg
"""
import collections.abc
import dataclasses
import pathlib
import statistics
import sys

from contests import OURS

BAR, GAP, LABEL, WIDTH, VALUE = 18, 6, 150, 300, 110
COLUMN = LABEL + WIDTH + VALUE


@dataclasses.dataclass
class Plot:
    title: str
    # Maps a row to the panels of each column of the picture: a name, and the values of every program.
    panels_of: collections.abc.Callable[[dict], list[list[tuple[str, dict[str, list[float]]]]]]


def size_text(size: str) -> str:
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if int(size) % unit == 0:
            return f"{int(size) // unit} {name}"
    return f"{size} bytes"


def metric(row: dict, name: str, what: str) -> tuple[str, dict[str, list[float]]]:
    """The values of one metric."""
    return f"{row['row']}{what}", {program: values[name] for program, values in row["values"].items()}


def sizes(row: dict) -> list[tuple[str, dict[str, list[float]]]]:
    names = sorted({size for values in row["values"].values() for size in values}, key=int)
    return [(f"{size_text(size)}, {row['row']}", {program: values[size] for program, values in row["values"].items()})
            for size in names]


PLOTS = {
    "train": Plot("Training, tokens a second (longer is better)", lambda row: [[metric(row, "tokens_per_s", "")]]),
    "generate": Plot("Tokens a second of prompts and of decoding, all sequences together (longer is better)",
                     lambda row: [[metric(row, "prefill_tokens_per_s", ", prompt")],
                                  [metric(row, "decode_tokens_per_s", ", decoding")]]),
    "collectives": Plot("All-reduce of two ranks, microseconds (shorter is better)",
                        lambda row: [sizes(row)[0::2], sizes(row)[1::2]]),
}


def number(value: float) -> str:
    """Three digits, or all digits before the decimal point."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def svg_text(x: float, y: float, text: str, more: str = "") -> str:
    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{safe}</text>'


def svg(width: int, height: int, parts: list[str]) -> str:
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12" fill="#222">')
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>", ""])


def panel(x: int, y: int, name: str, bars: dict[str, list[float]]) -> tuple[list[str], int]:
    """One bar per program: its length is the median, its line spans minimum to maximum. Returns SVG parts and the end y."""
    most = max(max(values) for values in bars.values())
    y += 24
    parts = [svg_text(x + 12, y, name, 'font-weight="bold"')]
    y += 8
    for program, values in bars.items():
        left = x + LABEL
        length = statistics.median(values) / most * WIDTH
        colour = "#0b6e99" if program.startswith(OURS) else "#b8bec4"
        low, high = (left + bound / most * WIDTH for bound in (min(values), max(values)))
        parts += [svg_text(left - 8, y + 13, program, 'text-anchor="end"'),
                  f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>',
                  f'<path d="M{low:.1f} {y + BAR / 2:.0f}H{high:.1f}" stroke="#222" stroke-width="1.5"/>',
                  svg_text(max(left + length, high) + 6, y + 13, number(statistics.median(values)))]
        y += BAR + GAP
    return parts, y


def drawn(plot: Plot, results: list[dict]) -> str:
    parts = [svg_text(12, 22, plot.title, 'font-weight="bold" font-size="15"')]
    y, columns = 34, 1
    for row in results:
        if not any(row["values"].values()):
            continue
        ends = [y]
        for column, panels in enumerate(plot.panels_of(row)):
            columns, end = max(columns, column + 1), y
            for name, bars in panels:
                more, end = panel(column * COLUMN, end, name, bars)
                parts += more
            ends.append(end)
        y = max(ends)
    return svg(columns * COLUMN, y + 12, parts)


def ratios(page: str) -> str:
    """A bar for each row of the page's first table: the ratio, and a line at 1, where both programs are as fast."""
    table = page[page.index("\n| workload |"):].strip().split("\n\n")[0]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    bars = [(row[0], float(row[head.index("ratio")])) for row in rows]
    left, unit = 250, WIDTH / max(ratio for _, ratio in bars)
    parts = [svg_text(12, 22, "Cleave's speed divided by that of the best other program", 'font-weight="bold" font-size="15"')]
    y = 40
    for name, ratio in bars:
        parts += [svg_text(left - 8, y + 13, name, 'text-anchor="end"'),
                  f'<rect x="{left}" y="{y}" width="{ratio * unit:.1f}" height="{BAR}" fill="#0b6e99"/>',
                  svg_text(left + max(ratio, 1) * unit + 6, y + 13, f"{ratio:.2f}")]
        y += BAR + GAP
    parts.append(f'<path d="M{left + unit:.1f} 34V{y}" stroke="#222" stroke-width="1.5" stroke-dasharray="4 3"/>')
    return svg(left + WIDTH + 50, y + 8, parts)


if __name__ == "__main__":
    source = pathlib.Path(sys.argv[1])
    source.with_name(f"{source.stem}-ratios.svg").write_text(ratios(source.read_text(encoding="utf-8")), encoding="utf-8")
