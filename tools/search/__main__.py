"""usage: ./run search SEED COUNT [--kind KIND] [--first N] [--jobs N] [--results DIR] [--program PATH]
                    [--device cpu|cuda] [--no-shrink]
       ./run search --replay CASE [--keep] [--device cpu|cuda]

Draws COUNT random cases of SEED and compares each with one rank or another oracle; see docs/search.md. `level` stands for 60,
500 or 5,000 cases by CLEAVE_TEST_LEVEL, with at least one of every kind. A failure is shrunk and printed with the command that repeats it: --replay takes SEED:INDEX,
SEED:INDEX:KIND, a case as JSON, or a file of such lines. Results are kept in DIR (build/search), so that an interrupted search continues.
"""
import argparse
import concurrent.futures
import json
import pathlib
import shlex
import shutil
import sys
import tempfile
import threading
import time

import cases
import kinds
import levels
import results
import shrink
from program import Failure, Program, Refused, reason

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_FAILURES = 20


def count_of(word):
    return word if word == "level" else int(word)


def indexes_of(options):
    if options.count == "level":
        return levels.indexes(options.seed)
    return range(options.first, options.first + options.count)


def parsed(words):
    parser = argparse.ArgumentParser(prog="./run search", usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("count", nargs="?", type=count_of)
    parser.add_argument("--kind", choices=sorted(cases.KINDS))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", default=str(ROOT / "build/search"))
    parser.add_argument("--program", default=str(ROOT / "build/cleave"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--replay")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args(words)
    if options.replay is None and (options.seed is None or options.count is None):
        parser.error("give SEED and COUNT, or --replay CASE")
    if options.count == "level" and (options.first or options.kind):
        parser.error("level chooses the cases; give a number of cases with --first or --kind")
    if not pathlib.Path(options.program).exists():
        parser.error(f"{options.program} does not exist; ./run build makes it")
    options.program = str(pathlib.Path(options.program).resolve())  # it runs in another folder
    Program.device = options.device
    return options


def end_of(case, program_path, keep=False):
    """Runs one case in a temporary folder; returns ("passed" | "refused" | "failed", what, text)."""
    folder = tempfile.mkdtemp(prefix="cleave-search-")
    try:
        kinds.run(case, Program(program_path, folder))
        return "passed", "", ""
    except Refused as refusal:
        return "refused", reason(str(refusal)), str(refusal)
    except Failure as failure:
        return "failed", failure.what, failure.text
    finally:
        if keep:
            print(f"files: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def fails_like(what, program_path):
    """A function that tells whether a case fails with `what`; a case that cannot run does not."""
    def fails(case):
        try:
            end, how, _ = end_of(case, program_path)
        except Exception:  # a smaller case may lack what its kind needs
            return False
        return end == "failed" and how == what
    return fails


def replay_line(case):
    device = "" if Program.device == "cpu" else f" --device {Program.device}"
    return "./run search --replay " + shlex.quote(json.dumps(case, separators=(",", ":"))) + device


class Search:
    """Runs cases and prints failures immediately."""

    def __init__(self, options):
        self.options, self.lock, self.failures = options, threading.Lock(), 0
        self.results = results.Results(options.results, options.seed, options.program)
        self.stop = threading.Event()

    def run_case(self, index):
        case = cases.draw(self.options.seed, index, self.options.kind)
        kind = case.get("drawn", case["kind"])
        if self.stop.is_set() or self.results.has(index, kind):
            return
        start = time.monotonic()
        end, what, text = end_of(case, self.options.program)
        row = {"index": index, "kind": kind, "end": end, "reason": what, "seconds": time.monotonic() - start}
        if end == "failed":
            with self.lock:
                self.failures += 1
                if self.failures == MAX_FAILURES:
                    self.stop.set()
            row["text"] = text
            if not self.stop.is_set() and not self.options.no_shrink:
                case = shrink.shrink(case, fails_like(what, self.options.program))
            row["case"] = case
        with self.lock:
            self.results.add(row)
            if end == "failed":
                print(f"FAILED {self.options.seed}:{index}:{row['kind']}: {what}: {text}\n  {replay_line(case)}", flush=True)

    def all(self):
        """Runs all cases; returns 0 if none failed, 1 if some did, 130 after Ctrl-C."""
        indexes = indexes_of(self.options)
        pool = concurrent.futures.ThreadPoolExecutor(self.options.jobs)
        futures = [pool.submit(self.run_case, index) for index in indexes]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except KeyboardInterrupt:
            self.stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            print("interrupted; the same command continues")
            return 130
        rows = [row for (index, kind), row in self.results.rows.items()
                if index in indexes and self.options.kind in (None, kind)]
        print("\n".join(results.table(rows)))
        failed = sum(row["end"] == "failed" for row in rows)
        print(f"{len(rows)} cases of seed {self.options.seed}: {failed} failed; results: {self.results.path}")
        return 1 if failed or self.stop.is_set() else 0


def replayed(options, text):
    """Whether the case failed."""
    if text.lstrip().startswith("{"):
        case = json.loads(text)
    else:
        seed, index, *kind = text.split(":")
        case = cases.draw(int(seed), int(index), *kind)
    for part in shrink.PARTS:
        case.setdefault(part, {})
    print(json.dumps(case))
    end, what, text = end_of(case, options.program, options.keep)
    print(f"{end}: {what}: {text}" if what else end, flush=True)
    return end == "failed"


def replay(options):
    path = pathlib.Path(options.replay)
    texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [options.replay]
    return 1 if any([replayed(options, text) for text in texts]) else 0


def main():
    options = parsed(sys.argv[1:])
    return replay(options) if options.replay is not None else Search(options).all()


if __name__ == "__main__":
    sys.exit(main())
