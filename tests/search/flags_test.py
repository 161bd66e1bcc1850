"""usage: flags_test.py PROGRAM

Every flag of the commands that compute numbers is drawn by tools/search, or listed here with the reason why not."""
import collections
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/search"))

import cases  # noqa: E402

PROGRAM = sys.argv.pop()
COMMANDS = {"train": ("train", "preset", "big", "text", "resume", "tune", "experts", "launch", "restart"), "generate": ("generate",),
            "eval": ("eval", "int4"), "predict": ("predict",), "convert": ("convert", "gguf"), "verify": ("verify",),
            "plan": ("plan",)}
# Flags that the search gives without drawing them as such: files, and the forms of a case.
GIVEN = {"train": {"model", "data", "out", "eval-data", "tokenizer", "resume", "plan", "config"},
         "generate": {"model", "prompt-ids", "prompt-file", "adapter", "tokenizer", "json", "config"},
         "eval": {"model", "data", "adapter", "reference", "tokenizer", "json", "config"},
         "predict": {"model", "text", "text-file", "json"}, "convert": {"from", "to", "adapter", "ema", "format", "tp", "pp", "dtype",
                                                                       "max-shard-size"},
         "verify": {"model", "plan", "config"},
         "plan": {"model", "ranks", "cluster", "tokens", "dry-run", "rank", "json"}}
# Flags that no case has, by what they concern.
UNDRAWN = {
    "several hosts, or no effect on one": {"transport", "fast-sums", "timeout", "local-rank", "over-commit"},
    "no GPU": {"device"},
    "text on the terminal": {"quiet", "json", "no-stream", "help"},
    "prompts as text: tests of generate": {"prompt", "chat"},
    "single layers of verify: its own tests": {"layer"},
    "another tokenizer: its own tests": {"tokenizer"},
    "plan's pages, tables and other limits: its own tests": {"vocab-size", "memory", "html", "runs", "parameters", "draw-schedule",
                                                            "plan", "config"},
    "an adapter of a classifier: tests of LoRA": {"adapter"},
    "experts over ranks: tests of generate, eval and verify": {"ep"},
}


def flags_of(command):
    text = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  (?:-h, |\[)?--([a-z0-9-]+)", text, re.MULTILINE))


class Flags(unittest.TestCase):
    def test_every_flag_is_drawn_or_listed(self):
        drawn = collections.defaultdict(set)
        for index in range(8000):
            case = cases.draw(1, index)
            for part in (case["math"], case["layout"], case["other"].get("first", {}), *case["other"].get("chain", [])):
                drawn[case["kind"]] |= set(part)
        undrawn = set().union(*UNDRAWN.values())
        for command, kinds in COMMANDS.items():
            known = GIVEN[command].union(*(drawn[kind] for kind in kinds))
            self.assertEqual(sorted(flags_of(command) - known - undrawn), [], command)


if __name__ == "__main__":
    unittest.main()
