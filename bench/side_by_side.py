#!/usr/bin/env python3
"""Compares Cleave with PyTorch and C++ programs on this machine, in one run: tables, and whether the targets are met.

The programs of a row run in turn (A B C, A B C, ...), --repeats times. If other processes used more than 5 % of the CPU
time during a run, it is repeated, at most twice; then the row is refused. Baselines that are not installed are listed.
Exit code: 0 all rows were measured, 1 a row was refused or a program failed.
"""
import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

import contests
import machine
import plot
import quiet
import report
import rows

ROOT = pathlib.Path(__file__).resolve().parents[1]
SECTIONS = ("train", "generate", "collectives")
ATTEMPTS = 3


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="times Cleave and its baselines; see docs/performance.md")
    parser.add_argument("--rows", default=",".join(SECTIONS), help="comma-separated sections (default: all)")
    parser.add_argument("--only", default="", metavar="REGEX", help="only rows whose name matches, such as 'llama.* bf16'")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program (default: 3)")
    parser.add_argument("--cleave", default=str(ROOT / "build/cleave"), help="our program (default: build/cleave)")
    parser.add_argument("--python", default=sys.executable, help="Python that has the baselines' packages (default: this one)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="per program (default: cores)")
    parser.add_argument("--tp", type=int, default=2, help="ranks that share the threads (default: 2)")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "out/bench", help="folder of the baselines' models")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one run")
    parser.add_argument("--out", type=pathlib.Path, help="folder with the pages performance-SECTION.md: docs/design. The measured rows of this kind of "
                        "CPU are replaced in its performance-CPU.json, from which the pages' tables and charts are written")
    parser.add_argument("--allow-busy", action="store_true", help="keep rows that other processes disturbed, marked as noisy")
    parser.add_argument("--short", action="store_true", help="minimal work, to test the bench; its numbers are meaningless")
    options = parser.parse_args()
    unknown = set(options.rows.split(",")) - set(SECTIONS)
    if unknown:
        parser.error(f"--rows has '{min(unknown)}'; expected {', '.join(SECTIONS)}")
    for name in ("repeats", "threads", "tp"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; expected at least 1")
    for section in options.rows.split(",") if options.out else ():
        if not page_of(options.out, section).is_file():
            parser.error(f"--out {options.out} has no file {page_of(options.out, section).name}; docs/design has the pages")
    return options


def page_of(folder: pathlib.Path, section: str) -> pathlib.Path:
    return folder / f"performance-{section}.md"


def name_of(kind: str) -> str:
    """A kind of CPU as part of a file's name."""
    return re.sub(r"\W+", "-", kind.lower()).strip("-")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class RowRun:
    """Runs the contestants of a row in turn, --repeats times."""

    def __init__(self, row: contests.Row, options: argparse.Namespace, versions: dict[str, str | None]):
        self.row, self.options = row, options
        self.missing: list[str] = []
        self.values: dict[str, dict[str, list[float]]] = {}
        self.others_share = 0.0  # the maximum of all kept runs
        self.refused = False
        self.has_failed = False
        self.contestants = [contestant for contestant in row.contestants if self._is_installed(contestant, versions)]

    def _is_installed(self, contestant: contests.Contestant, versions: dict[str, str | None]) -> bool:
        absent = [name for name in contestant.needs if versions.get(name) is None]
        if absent:
            self.missing.append(f"{contestant.name}: not installed ({', '.join(absent)})")
        return not absent

    def run(self) -> None:
        ready = [self._prepared(contestant) for contestant in self.contestants]
        self.contestants = [contestant for contestant in ready if contestant is not None]
        for repeat in range(self.options.repeats):
            for contestant in list(self.contestants):
                say(f"[{self.row.section}, {self.row.name}, {repeat + 1} of {self.options.repeats}] {contestant.name} ...")
                if not self._run_once(contestant):
                    return

    def _prepared(self, contestant: contests.Contestant) -> contests.Contestant | None:
        """Runs the contestant's preparation, such as writing a model; None if it fails."""
        if contestant.prepare is None:
            return contestant
        self.options.models.mkdir(parents=True, exist_ok=True)
        result = quiet.run(contestant.prepare, {}, self.options.timeout)
        if result.returncode != 0:
            self._drop(contestant, result)
            return None
        model = result.output.splitlines()[-1]
        return dataclasses.replace(contestant, command=[model if word == "{model}" else word for word in contestant.command])

    def _run_once(self, contestant: contests.Contestant) -> bool:
        """Returns False if the row is refused because the machine is busy."""
        environment = {"OMP_NUM_THREADS": str(contestant.threads_per_process)}
        for attempt in range(ATTEMPTS):
            result = quiet.run(contestant.command, environment, self.options.timeout)
            if result.returncode != 0:
                self._drop(contestant, result)
                return True
            if result.others_share <= quiet.MAX_OTHERS_SHARE or self.options.allow_busy:
                return self._keep(contestant, result)
            say(f"  other processes used {result.others_share:.0%} of the CPUs; "
                f"{'again' if attempt + 1 < ATTEMPTS else 'the row is refused'}")
            time.sleep(5)
        self.others_share = max(self.others_share, result.others_share)
        self.refused = True
        return False

    def _keep(self, contestant: contests.Contestant, result: quiet.Run) -> bool:
        try:
            metrics = contests.read_metrics(self.row.section, result.output)
        except (ValueError, KeyError) as error:
            self._drop(contestant, dataclasses.replace(result, errors=f"its output cannot be read: {error!r}"))
            return True
        for name, value in metrics.items():
            self.values.setdefault(contestant.name, {}).setdefault(name, []).append(value)
        self.others_share = max(self.others_share, result.others_share)
        shown = ", ".join(f"{name} {report.number(value)}" for name, value in metrics.items())
        say(f"  {shown}; {result.wall_s:.0f} s, others {result.others_share:.1%}")
        return True

    def _drop(self, contestant: contests.Contestant, result: quiet.Run) -> None:
        """Reports a failed program, and excludes it and its numbers from the row."""
        lines = [line.strip() for line in result.errors.splitlines() if line.strip()]
        how = f"signal {-result.returncode}" if result.returncode < 0 else f"exit code {result.returncode}"
        reason = f"{how}: {lines[-1][:160]}" if lines else how
        say(f"  failed: {reason}\n" + "\n".join(f"    {line}" for line in lines[-12:]))
        self.missing.append(f"{contestant.name}: failed, {plain(reason, self.options)}")
        self.values.pop(contestant.name, None)
        self.contestants = [other for other in self.contestants if other.name != contestant.name]
        self.has_failed = True

    def result(self) -> dict:
        values = {} if self.refused else self.values
        verdicts = contests.judge(self.row, values)
        return {"section": self.row.section, "row": self.row.name, "values": values, "missing": self.missing,
                "refused": self.refused, "failed": self.has_failed, "others_share": self.others_share,
                "noisy": not self.refused and self.others_share > quiet.MAX_OTHERS_SHARE,
                "verdicts": [{**dataclasses.asdict(verdict), "met": verdict.is_met()} for verdict in verdicts],
                "commands": [command_text(contestant, self.options) for contestant in self.contestants]}


def plain(text: str, options: argparse.Namespace) -> str:
    """Without this machine's folders, in ASCII."""
    names = {str(ROOT) + "/": "", options.python: "python", options.cleave: "build/cleave",
             str(options.models) + "/": "out/bench/"}
    for folder, name in sorted(names.items(), key=lambda item: -len(item[0])):
        text = text.replace(folder, name)
    return re.sub(r"(?<![\w.~-])/(?:[\w.-]+/)+", ".../", text.encode("ascii", "replace").decode())


def command_text(contestant: contests.Contestant, options: argparse.Namespace) -> str:
    words = [plain(word, options) if word.startswith("/") else word for word in contestant.command]
    return f"OMP_NUM_THREADS={contestant.threads_per_process} {shlex.join(words)}"


def check_quiet(options: argparse.Namespace) -> None:
    share = quiet.share_of_others_now()
    if share > quiet.MAX_OTHERS_SHARE and not options.allow_busy:
        raise SystemExit(f"side_by_side: other processes use {share:.0%} of the CPUs now; stop them, or give --allow-busy, "
                         "which marks rows as noisy")


def write(folder: pathlib.Path, kind: str, measured: list[dict], order: list[tuple[str, str]]) -> None:
    """Replaces the measured rows in the file of this kind of CPU, and its tables in the pages of their sections."""
    file = folder / f"performance-{name_of(kind)}.json"
    old = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    all_rows = report.merged(old, measured, order)
    text = json.dumps({"kind": kind, "rows": all_rows}, indent=1)
    # A list of numbers in one line.
    text = re.sub(r"\[\s+([-\d.e,\s]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    file.write_text(text + "\n", encoding="utf-8")
    for section in dict.fromkeys(row["section"] for row in measured):
        drawing = folder / f"performance-{section}-{name_of(kind)}.svg"
        kept = [row for row in all_rows if row["section"] == section and not row["refused"]]
        drawing.write_text(plot.drawn(plot.PLOTS[section], kept), encoding="utf-8")
        report.replace_section(page_of(folder, section), section, kind, report.section_text(section, kind, all_rows, drawing.name))


def main() -> int:
    options = parse_options()
    versions = machine.versions(options.cleave, options.python)
    if versions["cleave"] is None:
        raise SystemExit(f"side_by_side: {options.cleave} does not run; build it with ./run build, or give --cleave")
    quiet.adopt_orphans()
    check_quiet(options)
    setting = contests.Setting(cleave=options.cleave, python=options.python, models=options.models,
                               threads=options.threads, tp=options.tp, is_short=options.short)
    everything = rows.all_rows(setting, list(SECTIONS))
    chosen = [row for row in everything if row.section in options.rows.split(",") and re.search(options.only, row.name)]
    if not chosen:
        raise SystemExit(f"side_by_side: no row's name matches --only '{options.only}'")
    conditions = {"date": datetime.date.today().isoformat(), "machine": machine.describe(), "versions": versions,
                  "repeats": options.repeats, "threads": options.threads, "short": options.short}
    kind = conditions["machine"].pop("kind")
    results: list[dict] = []
    for row in chosen:
        row_run = RowRun(row, options, versions)
        row_run.run()
        results.append({**row_run.result(), "conditions": conditions})
        if options.out:
            write(options.out, kind, results, [(row.section, row.name) for row in everything])
    for section in dict.fromkeys(row["section"] for row in results):
        print(f"## {section}\n\n{report.section_text(section, kind, results, None)}\n")
    return 1 if any(row["refused"] or row["failed"] for row in results) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        sys.exit(130)
