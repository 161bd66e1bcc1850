"""Writes Markdown tables between the markers of a page."""
import pathlib
import re
import statistics

from plot import PLOTS, number, size_text

GIB = 2**30


def spread(values: list[float], unit: float = 1) -> str:
    """The median, and with several values the minimum and maximum."""
    scaled = [value / unit for value in values]
    text = number(statistics.median(scaled))
    return text if len(scaled) == 1 else f"{text} ({number(min(scaled))} to {number(max(scaled))})"


def table(titles: list[str], lines: list[list[str]]) -> list[str]:
    rule = ["---"] + ["--:" if title.endswith(":") else "---" for title in titles[1:]]
    rows = [[title.removesuffix(":") for title in titles], rule, *lines]
    return [f"| {' | '.join(row)} |" for row in rows]


def value_table(section: str, results: list[dict]) -> list[str]:
    """Every program of every row; collectives have one column per size."""
    if section == "collectives":
        lines = []
        for row in results:
            sizes = sorted({size for values in row["values"].values() for size in values}, key=int)
            if sizes:
                lines += ["", f"All-reduce, fp32, two ranks, {row['row']}; microseconds:", ""]
                lines += table(["program", *(f"{size_text(size)}:" for size in sizes)],
                               [[name, *(spread(values[size]) for size in sizes)] for name, values in row["values"].items()])
        return lines
    columns = {"train": (("ms a step", "step_ms", 1), ("tokens/s", "tokens_per_s", 1),
                         ("peak memory, GiB", "peak_rss_bytes", GIB), ("share of the limit", "share_of_limit", 1)),
               "generate": (("prefill, tokens/s", "prefill_tokens_per_s", 1),
                            ("decode, tokens/s", "decode_tokens_per_s", 1),
                            ("share of the limit, prefill", "prefill_share_of_limit", 1),
                            ("decode", "decode_share_of_limit", 1))}[section]
    usual = {"train": {"dropout": "0"}, "generate": {"batch": "1", "prompt": "128"}}[section]
    titles = ["model", "dtype", *usual]

    def settings(name: str) -> list[str]:
        shape, dtype, *more = name.split(" ")
        return [shape, dtype, *(usual | dict(zip(more[::2], more[1::2]))).values()]

    lines = [[*settings(row["row"]), name,
              *(spread(values[metric], unit) if metric in values else "-" for _, metric, unit in columns)]
             for row in results for name, values in row["values"].items()]
    return ["", *table([*titles, "program", *(f"{title}:" for title, _, _ in columns)], lines)]


def target_table(results: list[dict]) -> list[str]:
    lines = []
    for row in results:
        for verdict in row["verdicts"]:
            met = {True: "met", False: "not met", None: "not measured"}[verdict["met"]]
            bound = "" if verdict["is_ratio"] else "at most "
            lines.append([verdict["what"], verdict["row"], verdict["against"] or "-", f"{bound}{number(verdict['wanted'])}",
                          "-" if verdict["seen"] is None else number(verdict["seen"]), met])
    return table(["target", "row", "best baseline", "wanted:", "seen:", "result"], lines)


def conditions_text(where: dict) -> str:
    """When, where, which versions."""
    machine, versions = where["machine"], where["versions"]
    programs = ", ".join(f"{name} {version}" for name, version in versions.items() if version and name != "cleave")
    threads = "" if where["threads"] == machine["cores"] else f"{where['threads']} threads on "
    return (f"{where['date']}. {threads}{machine['cores']} cores of {machine['model']} ({' '.join(machine['flags'])}), "
            f"{machine['memory_gib']} GiB, {machine['system']}. {versions['cleave']}; {programs}. Medians of "
            f"{where['repeats']} alternating runs (least to most).")


def all_conditions(kind: str, results: list[dict]) -> list[str]:
    """A paragraph if all rows were measured under the same conditions; else a list, which names the rows."""
    rows_of: dict[str, list[str]] = {}
    for row in results:
        rows_of.setdefault(conditions_text(row["conditions"]), []).append(row["row"])
    if len(rows_of) == 1:
        lines = [f"**{kind}**, {next(iter(rows_of))}"]
    else:
        lines = [f"**{kind}**", "", *(f"- {', '.join(names)}: {text}" for text, names in rows_of.items())]
    if any(row["conditions"]["short"] for row in results):
        lines += ["", "**A short run, to test the bench: these numbers are meaningless.**"]
    return lines


def section_text(section: str, kind: str, rows: list[dict], plot: str | None) -> str:
    results = [row for row in rows if row["section"] == section]
    lines = all_conditions(kind, results)
    noisy = [f"{row['row']} ({row['others_share']:.0%})" for row in results if row["noisy"]]
    if noisy:
        lines += ["", f"**Noisy, other processes used the CPUs (their share): {', '.join(noisy)}.**"]
    lines += value_table(section, [row for row in results if not row["refused"]])
    lines += ["", *target_table([row for row in results if not row["refused"]])]
    if plot:
        lines += ["", f"![{PLOTS[section].title}]({plot})"]
    missing = [f"{row['row']}: {what}" for row in results for what in row["missing"]]
    missing += [f"{row['row']}: refused, other processes used {row['others_share']:.0%} of the CPUs"
                for row in results if row["refused"]]
    if missing:
        lines += ["", "Not in the tables:", "", *(f"- {what}" for what in shortened(missing))]
    lines += ["", "<details><summary>Commands</summary>", "", "```text",
              *dict.fromkeys(command for row in results for command in row["commands"]), "```", "", "</details>"]
    return "\n".join(lines)


def merged(old: list[dict], new: list[dict], order: list[tuple[str, str]]) -> list[dict]:
    """The new rows and the old ones of other names, in the given order of sections and names, then those of no known name. A
    refused row does not replace a measured one."""
    rows = {(row["section"], row["row"]): row for row in old}
    for row in new:
        key = row["section"], row["row"]
        if not row["refused"] or key not in rows:
            rows[key] = row
    places = {key: place for place, key in enumerate(order)}
    return [rows[key] for key in sorted(rows, key=lambda key: places.get(key, len(places)))]


def shortened(missing: list[str]) -> list[str]:
    """Merges the same text of several rows."""
    rows_of: dict[str, list[str]] = {}
    for text in missing:
        row, _, what = text.partition(": ")
        rows_of.setdefault(what, []).append(row)
    return [f"{what} ({', '.join(rows)})" for what, rows in rows_of.items()]


def replace_section(page: pathlib.Path, section: str, kind: str, text: str) -> None:
    """Puts the text between the markers of this kind of CPU, or behind those of other kinds; the rest stays."""
    whole = page.read_text(encoding="utf-8")
    begin, end = f"<!-- begin: {section}, {kind} -->", f"<!-- end: {section}, {kind} -->"
    block = f"{begin}\n{text}\n{end}"
    own = re.compile(rf"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    ends = list(re.finditer(rf"<!-- end: {section}, .*? -->", whole))
    if not ends:
        raise SystemExit(f"{page} has no lines '{begin}' and '{end}'; add them at the place of the table")
    if own.search(whole):
        whole = own.sub(lambda _: block, whole)
    else:
        whole = f"{whole[:ends[-1].end()]}\n\n{block}{whole[ends[-1].end():]}"
    page.write_text(whole, encoding="utf-8")
