"""A case that runs: its files and its commands."""
import json
import os

import models
import runs
import tolerance
from optimizers import EXACT
from program import OVERFLOWED, Failure, Refused
from runs import REFERENCE, Inputs, words_of


class Work:
    """A case, its files and the program."""

    def __init__(self, case, program):
        self.case, self.program = case, program
        self.folder = program.folder
        self.inputs = Inputs(case, self.folder)
        # The least precise of the dtypes in which the case computes.
        dtypes = [case["math"].get("dtype", "fp32"), case["math"].get("kv-cache-dtype", "fp64")]
        self.dtype = max(dtypes, key=tolerance.UNIT.get)

    def path(self, name):
        return os.path.join(self.folder, name)

    def layout_words(self, layout=None):
        """Arguments for a layout, by default the case's: flags, or a file of flags; some cases have a plan of their own."""
        other, flags = self.case["other"], dict(self.case["layout"] if layout is None else layout)
        family = self.inputs.model["family"]
        if other.get("plan") and flags.get("tp", 1) > 1 and family in models.WITH_PLANS:
            columns, rows = models.WITH_PLANS[family]
            flags["plan"] = self.write_json("plan.json", {columns: {"style": "colwise"}, rows: {"style": "rowwise"}})
        if other.get("config"):
            flags = {"config": self.write_json("flags.json", flags)}
        return words_of(flags)

    def write_json(self, name, value):
        return self.write_text(name, json.dumps(value))

    def write_lines(self, name, rows):
        return self.write_text(name, "".join(json.dumps(row) + "\n" for row in rows))

    def write_text(self, name, text):
        with open(self.path(name), "w", encoding="ascii") as file:
            file.write(text)
        return self.path(name)

    def train(self, out, flags, processes=None, math_flags=None):
        words = runs.train_words(self.inputs, self.path(out), flags, math_flags=math_flags)
        if processes:
            words = runs.launched(words, self.program.path, processes)
        self.program.answer(*words)
        return self.path(out)

    def reference(self, out="reference", model=None):
        more = ["--save-every", "1"] if self.dtype in EXACT and out == "reference" else []
        if self.inputs.model["balances"]:  # the auxiliary loss is of the tokens of a micro-batch
            more += words_of({name: self.case["layout"][name] for name in ("dp", "micro-batch-size")})
        self.program.answer(*runs.train_words(self.inputs, self.path(out), REFERENCE + more, model))
        return self.path(out)

    def initial(self):
        """A checkpoint of the weights that the program starts with: one step that changes nothing."""
        if not os.path.exists(self.path("initial")):
            flags = {**self.case["math"], "steps": 1, "lr": 0, "weight-decay": 0}
            flags["dtype"] = "fp64" if self.dtype == "fp64" else "fp32"
            left_out = ("min-lr", "warmup", "decay-steps", "epochs", "early-stop")
            case = {**self.case, "math": {k: v for k, v in flags.items() if k not in left_out}}
            self.program.answer(*runs.train_words(Inputs(case, self.folder), self.path("initial"), REFERENCE))
        return runs.checkpoint_of(self.path("initial"))


def either(first, second):
    """Results of both. If the first refuses, the second must refuse too: no layout can do more than one rank."""
    try:
        a = first()
    except (Refused, Failure) as refusal:
        if str(refusal) == OVERFLOWED:
            raise  # near the limit rounding decides which side overflows
        if isinstance(refusal, Failure) and refusal.what != "exit 9":
            raise
        try:
            second()
        except Refused:
            raise Refused(str(refusal)) from None
        except Failure as failure:
            if isinstance(refusal, Failure) and failure.what == refusal.what:
                raise Refused(f"both end with {failure.what}") from None
            raise
        raise Failure("refusal", f"only one rank refuses: {refusal}") from None
    return a, second()
