"""Checks the learning rates and the updates of a run by their definitions (docs/training.md), from what the run saved.

Two runs are compared within bounds that allow Adam to choose another direction. So a rate or a weight decay that is wrong in one
of them, or in both, would not show there.
"""
import math
import os
import re

import runs
import tolerance
from program import Failure

EXACT = ("fp32", "fp64")  # checkpoints in other dtypes round the weights
MOST_ELEMENTS = 5000  # of a tensor; of a larger one, some


def rate(flags, step, num_steps):
    """The learning rate of step 0, 1, ..."""
    peak, least = float(flags.get("lr", 3e-4)), float(flags.get("min-lr", 0))
    warmup, kind = flags.get("warmup", num_steps // 10), flags.get("schedule", "cosine")
    if step < warmup:
        return peak * (step + 1) / warmup
    decay = flags.get("decay-steps", min(num_steps // 10, num_steps - warmup)) if kind == "wsd" else num_steps - warmup
    done = (step - (num_steps - decay)) / decay if decay and kind != "constant" else 0
    share = (1 + math.cos(math.pi * done)) / 2 if kind == "cosine" else 1 - max(done, 0)
    return peak if kind == "constant" else least + (peak - least) * share


def check_rates(work, out):
    flags, rows = work.case["math"], runs.metrics_of(out)
    for number, row in enumerate(rows):
        wanted = rate(flags, number, flags.get("steps", len(rows)))
        if abs(row["lr"] - wanted) > 1e-9 * float(flags.get("lr", 3e-4)):
            raise Failure("lr", f"step {number + 1}: lr {row['lr']}, {wanted} by its definition")


def pattern_of(glob):
    """A regular expression, to be searched for, of the names that a glob of --param-group matches: whole parts of a name. The
    search draws no {a,b}."""
    return r"(^|\.)" + re.escape(glob).replace(r"\*", "[^.]*") + r"(\.|$)"


def settings_of(flags, name, num_dims):
    """(factor of the learning rate, weight decay) of a parameter."""
    decays = num_dims > 1 or flags.get("decay-on") == "all"
    factor, decay = 1.0, float(flags.get("weight-decay", 0.1)) if decays else 0.0
    glob, _, group = flags.get("param-group", ":").rpartition(":")
    if glob and re.search(pattern_of(glob), name):
        own = dict(each.split("=") for each in group.split(","))
        factor, decay = float(own.get("lr-factor", factor)), float(own.get("weight-decay", decay))
    return factor, decay


def check_updates(work, out):
    """Each weight after a step follows from the weight before it and the moments, by the definition of Adam and AdamW."""
    flags = work.case["math"]
    if work.dtype not in EXACT or flags.get("optimizer", "adamw") not in ("adam", "adamw"):
        return
    rows = runs.metrics_of(out)
    steps = sorted(name for name in os.listdir(out) if re.fullmatch(r"step_\d+", name))
    for before, after in zip(steps, steps[1:]):
        step = int(after.removeprefix("step_"))
        if int(before.removeprefix("step_")) == step - 1:
            lr = rows[step - 1]["lr"] if runs.has_update(rows[step - 1]) else 0.0
            number = max(1, sum(map(runs.has_update, rows[:step])))
            check_update(work, number, lr, [os.path.join(out, folder) for folder in (before, after)])


def check_update(work, number, lr, folders):
    """The update `number` with the rate `lr`, between two checkpoints."""
    flags, unit = work.case["math"], tolerance.UNIT[work.dtype]
    b1, b2 = (float(b) for b in str(flags.get("adam-betas", "0.9,0.95")).split(","))
    eps, is_adamw = float(flags.get("adam-eps", 1e-8)), flags.get("optimizer", "adamw") == "adamw"
    old, new = (runs.tensors_in(folder) for folder in folders)
    shapes = {name: shape for name, (shape, _) in runs.weights_in(folders[1]).items()}
    for name, firsts in new.items():
        if not name.startswith("optimizer.exp_avg."):
            continue
        weight = name.removeprefix("optimizer.exp_avg.")
        factor, decay = settings_of(flags, weight, len(shapes[weight]))
        seconds = new[f"optimizer.exp_avg_sq.{weight}"]
        for place in range(0, len(firsts), max(1, len(firsts) // MOST_ELEMENTS)):
            w, got, m, v = old[weight][place], new[weight][place], firsts[place], seconds[place]
            step = lr * factor * m / (1 - b1**number) / (math.sqrt(v / (1 - b2**number)) + eps)
            wanted = w * (1 - lr * factor * decay * is_adamw) - step
            # A product and a sum for each of decay and step; about eight roundings of the step itself.
            bound = 4 * unit * (abs(w) + abs(got)) + 16 * unit * abs(step) + 1e-30
            if not abs(got - wanted) <= bound:
                raise Failure("update", f"{os.path.basename(folders[1])}: {weight}[{place}] is {got}, {wanted} by its definition (bound {bound:.3g})")
