#!/usr/bin/env python3
"""Fits the six constants of a kind of machine (FittedConstants in cleave/planner/cluster.h) to a table of published runs.

Nelder-Mead on the mean absolute logarithm of predicted / published time, averaged over sources, plus 0.3 of its root mean
square, plus half of that of memory. A small pull to the defaults decides constants that the rows say nothing about. Rows of
which the table does not give micro-batch or recompute do not count, unless no others exist. Several machines may share constants.

usage: fit_planner.py CLEAVE RUNS.csv MACHINE [MACHINE ...] [--without SOURCE] [--evaluations N]
                                                                    prints the constants as JSON; takes minutes
       fit_planner.py ... --hold-out sources|N                      cross-validation instead
       fit_planner.py ... --fixed NAME=VALUE                        repeatable: a constant that is not fitted
--without leaves out the rows of sources that begin with this text. --hold-out fits the constants without the rows of one source,
or of each N-th row, in turn, from the same start, and prints the errors of the rows that were left out.
"""
import argparse
import csv
import json
import math
import pathlib
import subprocess
import tempfile

#            name: (default, lowest, highest, first step)
CONSTANTS = {"matrix_share": (0.8, 0.1, 0.95, 0.08),
             "memory_share": (0.8, 0.3, 0.95, -0.1),
             "host_link_share": (0.7, 0.3, 0.95, 0.1),
             "net_link_share": (0.7, 0.3, 0.95, -0.15),
             "layer_call_s": (0.001, 0, 0.005, 0.0005),
             "runtime_bytes": (5e9, 0, 15e9, 3e9)}
SCALES = (1, -0.7, 0.5)  # of the first steps: each start begins at the best point of the one before


def fixed_of(options):
    return {name: float(value) for name, value in (text.split("=") for text in options.fixed)}


def predicted(options, machine, values, folder):
    """The rows of a machine, with the constants `values`."""
    path = pathlib.Path(folder) / "cluster.json"
    path.write_text(json.dumps({"base": machine, "name": machine, "fitted": {**dict(zip(CONSTANTS, values)), **fixed_of(options)}}))
    answer = subprocess.run([options.program, "plan", "--runs", options.runs, "--cluster", str(path), "--json"], check=True,
                            capture_output=True, text=True).stdout
    rows = [row for row in json.loads(answer)["rows"] if row.get("cluster") == machine
            and not (options.without and row["source"].startswith(options.without))]
    return [row for row in rows if "assumed" not in row] or rows


def of_machines(options, folder):
    """A table of the rows of the machines only: the program reads it faster."""
    answer = subprocess.run([options.program, "plan", "--runs", options.runs, "--json"], check=True, capture_output=True,
                            text=True).stdout
    wanted = {row["id"] for row in json.loads(answer)["rows"] if row.get("cluster") in options.machines}
    path = pathlib.Path(folder) / "runs.csv"
    with open(options.runs, newline="", encoding="utf-8") as file, open(path, "w", newline="", encoding="utf-8") as out:
        table = csv.DictReader(file)
        writer = csv.DictWriter(out, table.fieldnames)
        writer.writeheader()
        writer.writerows(row for row in table if row["id"] in wanted)
    return str(path)


def groups_of(rows, kind):
    """The ids of the rows that are left out together."""
    if kind == "sources":
        names = sorted({row["source"] for row in rows})
        return {name: {row["id"] for row in rows if row["source"] == name} for name in names}
    count = int(kind)
    return {f"rows {first + 1}, {first + 1 + count}, ...": {row["id"] for row in rows[first::count]} for first in range(count)}


def errors_text(rows, predicted_key, key):
    errors = [abs(row[predicted_key] / row[key] - 1) for row in rows if key in row]
    return f"mean {100 * sum(errors) / len(errors):.1f} %, worst {100 * max(errors):.1f} % of {len(errors)}" if errors else "-"


def distance(rows):
    """What the fit makes small."""
    by_source = {}
    for row in rows:
        if "step_s" in row:
            by_source.setdefault(row["source"], []).append(abs(math.log(row["predicted_step_s"] / row["step_s"])))
    times = [sum(errors) / len(errors) + 0.3 * math.sqrt(sum(e * e for e in errors) / len(errors))
             for errors in by_source.values()]
    memory = [abs(math.log(row["predicted_bytes"] / row["bytes"])) for row in rows if "bytes" in row]
    return (sum(times) / max(1, len(times))) + (0.5 * sum(memory) / len(memory) if memory else 0)


def minimum(function, begin, steps, evaluations):
    """The best point that Nelder-Mead finds."""
    points = [begin] + [[x + (steps[j] if i == j else 0) for j, x in enumerate(begin)] for i in range(len(begin))]
    simplex = sorted((function(point), point) for point in points)
    for _ in range(evaluations // 2):
        center = [sum(column) / len(begin) for column in zip(*(point for _, point in simplex[:-1]))]
        worst = simplex[-1][1]

        def beyond(factor):
            point = [c + factor * (w - c) for c, w in zip(center, worst)]
            return function(point), point

        tried = beyond(-1)
        if tried[0] < simplex[0][0]:
            tried = min(tried, beyond(-2))
        elif tried[0] >= simplex[-2][0]:
            tried = beyond(0.5)
        if tried[0] < simplex[-1][0]:
            simplex[-1] = tried
        else:
            best = simplex[0][1]
            shrunk = [[b + 0.5 * (p - b) for b, p in zip(best, point)] for _, point in simplex[1:]]
            simplex = simplex[:1] + [(function(point), point) for point in shrunk]
        simplex.sort()
    return simplex[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="CLEAVE")
    parser.add_argument("runs", metavar="RUNS.csv")
    parser.add_argument("machines", metavar="MACHINE", nargs="+")
    parser.add_argument("--without", metavar="SOURCE")
    parser.add_argument("--hold-out", metavar="sources|N")
    parser.add_argument("--fixed", metavar="NAME=VALUE", action="append", default=[])
    parser.add_argument("--evaluations", type=int, default=900)
    options = parser.parse_args()
    for name in fixed_of(options):
        del CONSTANTS[name]
    defaults, low, high, steps = (list(column) for column in zip(*CONSTANTS.values()))

    with tempfile.TemporaryDirectory() as folder:
        options.runs = of_machines(options, folder)

        def all_rows(values):
            return [row for machine in options.machines for row in predicted(options, machine, values, folder)]

        def cost(values, held=frozenset()):
            if any(not a <= v <= b for a, v, b in zip(low, values, high)):
                return 1e3
            pull = 0.002 * sum(((v - d) / (b - a)) ** 2 for v, d, a, b in zip(values, defaults, low, high))
            return pull + distance([row for row in all_rows(values) if row["id"] not in held])

        def fit(function):
            constants = defaults
            for scale in SCALES:
                value, constants = minimum(function, constants, [scale * step for step in steps],
                                           options.evaluations // len(SCALES))
            return value, constants

        if options.hold_out:
            unseen = []
            for name, held in groups_of(all_rows(defaults), options.hold_out).items():
                _, constants = fit(lambda values, held=held: cost(values, held))
                rows = [row for row in all_rows(constants) if row["id"] in held]
                print(f"without {name}: time {errors_text(rows, 'predicted_step_s', 'step_s')}; "
                      f"memory {errors_text(rows, 'predicted_bytes', 'bytes')}", flush=True)
                unseen += rows
            print(f"all rows, each unseen: time {errors_text(unseen, 'predicted_step_s', 'step_s')}; "
                  f"memory {errors_text(unseen, 'predicted_bytes', 'bytes')}")
            return
        value, constants = fit(cost)
    print(json.dumps({"machines": options.machines, "distance": round(value, 4),
                      "fitted": {name: float(f"{v:.3g}") for name, v in zip(CONSTANTS, constants)}}))


if __name__ == "__main__":
    main()
