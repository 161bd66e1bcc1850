"""Results of a search, one line of JSON per case, kept by commit, program and seed so that a search can continue."""
import collections
import hashlib
import json
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def digest(program):
    """A hash of the program, its library and this tool, on which results depend."""
    hasher = hashlib.sha256()
    real = pathlib.Path(program).resolve()
    for path in [real, *sorted(real.parent.glob("libcleave*.so*")), *sorted(HERE.glob("*.py"))]:
        if path.is_file():
            hasher.update(path.read_bytes())
    return hasher.hexdigest()[:12]


def commit():
    """The commit of this tree, or `unknown` outside of a git repository."""
    done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


class Results:
    """The results file of one seed, appended after each case."""

    def __init__(self, folder, seed, program):
        self.folder = os.path.join(folder, f"{commit()}-{digest(program)}")
        os.makedirs(self.folder, exist_ok=True)
        self.path = os.path.join(self.folder, f"seed-{seed}.jsonl")
        self.rows = {}
        if os.path.exists(self.path):
            with open(self.path, encoding="ascii") as file:
                for line in file:
                    if line.endswith("\n"):  # an incomplete line is an unfinished case
                        row = json.loads(line)
                        self.rows[row["index"], row["kind"]] = row

    def has(self, index, kind):
        """Whether the case needs no new run; failures are run again."""
        return self.rows.get((index, kind), {}).get("end") in ("passed", "refused")

    def add(self, row):
        self.rows[row["index"], row["kind"]] = row
        with open(self.path, "a", encoding="ascii") as file:
            file.write(json.dumps(row) + "\n")


def table(rows):
    """Lines with the numbers of results by kind, and of refusals by reason."""
    kinds = collections.defaultdict(collections.Counter)
    seconds = collections.Counter()
    for row in rows:
        kinds[row["kind"]][row["end"]] += 1
        seconds[row["kind"]] += row["seconds"]
    yield f"{'kind':10} {'cases':>6} {'passed':>7} {'refused':>8} {'failed':>7} {'s/case':>7}"
    for kind, ends in sorted(kinds.items()):
        count = sum(ends.values())
        yield (f"{kind:10} {count:6} {ends['passed']:7} {ends['refused']:8} {ends['failed']:7} "
               f"{seconds[kind] / count:7.2f}")
    reasons = collections.Counter(row["reason"] for row in rows if row["end"] == "refused" and row["kind"] != "extreme")
    if reasons:
        yield "refused, by reason:"
    for text, count in reasons.most_common(20):
        yield f"{count:6}  {text}"
