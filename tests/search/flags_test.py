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
         "predict": {"model", "text", "text-file", "json"}, "convert": {"from", "to", "adapter", "ema"},
         "verify": {"model", "plan", "config"},
         "plan": {"model", "ranks", "cluster", "tokens", "dry-run", "rank", "json"}}
# Flags that no case has: the reason, the commands, the flags.
UNDRAWN = [("several hosts, or no effect on one", COMMANDS, {"transport", "fast-sums", "timeout", "local-rank", "over-commit"}),
           ("no GPU", COMMANDS, {"device"}),
           ("text on the terminal", COMMANDS, {"quiet", "json", "no-stream", "help"}),
           ("prompts as text: tests of generate", ["generate"], {"prompt", "chat"}),
           ("a recorded step gives the same tokens: tests of generate", ["generate"], {"record-step", "out"}),
           ("single layers: tests of verify", ["verify"], {"layer"}),
           ("another tokenizer: its own tests", ["predict"], {"tokenizer"}),
           ("pages, tables and other limits: tests of plan", ["plan"],
            {"vocab-size", "memory", "html", "runs", "parameters", "draw-schedule", "plan", "config"}),
           ("an adapter of a classifier: tests of LoRA", ["predict"], {"adapter"}),
           ("a file of flags, which all commands read in the same way", ["predict"], {"config"})]


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
        for command, kinds in COMMANDS.items():
            flags = flags_of(command)
            known = GIVEN[command].union(*(drawn[kind] for kind in kinds),
                                         *(names for _, commands, names in UNDRAWN if command in commands))
            self.assertEqual(sorted(flags - known), [], command)
            self.assertEqual(sorted(GIVEN[command] - flags), [], f"GIVEN names flags that {command} lacks")


if __name__ == "__main__":
    unittest.main()
