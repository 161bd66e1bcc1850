"""usage: flags_test.py PROGRAM

Every flag of the commands that compute numbers is drawn by tools/search, or listed here with the reason why not. `extreme`
draws the flags of all commands."""
import collections
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/search"))

import cases  # noqa: E402
import extreme  # noqa: E402

PROGRAM = sys.argv.pop()
COMMANDS = {"train": ("train", "preset", "big", "text", "resume", "tune", "torch", "experts", "launch", "restart"), "generate": ("generate",),
            "eval": ("eval", "int4"), "predict": ("predict",), "convert": ("convert", "gguf"), "verify": ("verify",),
            "plan": ("plan",)}
# Flags that the search gives without drawing them as such: files, and the forms of a case.
GIVEN = {"train": {"model", "data", "out", "eval-data", "tokenizer", "resume", "plan", "config"},
         "generate": {"model", "prompt", "prompt-ids", "prompt-file", "adapter", "tokenizer", "json", "config", "record-step", "out"},
         "eval": {"model", "data", "adapter", "reference", "tokenizer", "json", "config"},
         "predict": {"model", "text", "text-file", "json", "config"}, "convert": {"from", "to", "adapter", "ema"},
         "verify": {"model", "plan", "config"},
         "plan": {"model", "ranks", "cluster", "tokens", "dry-run", "rank", "json"}}
# Flags that no case has: the reason, the commands, the flags.
UNDRAWN = [("other launchers", COMMANDS, {"local-rank"}),
           ("no GPU", COMMANDS, {"device"}),
           ("text on the terminal", COMMANDS, {"json", "help"}), ("text on the terminal", ["convert"], {"quiet"}),
           ("a conversation on the terminal: tests of generate", ["generate"], {"chat"}),
           ("another tokenizer: its own tests", ["predict"], {"tokenizer"}),
           ("pages, tables and other limits: tests of plan", ["plan"],
            {"vocab-size", "memory", "html", "runs", "parameters", "draw-schedule", "plan", "config"}),
           ("two texts: tests of generate", ["predict"], {"text-pair"}),
           ("an adapter of a classifier: tests of LoRA", ["predict"], {"adapter"})]


def flags_of(command):
    text = subprocess.run([PROGRAM, *command.split(), "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  (?:-h, |\[)?--([a-z0-9-]+)", text, re.MULTILINE))


class Flags(unittest.TestCase):
    def test_every_flag_is_drawn_or_listed(self):
        drawn = collections.defaultdict(set)
        for index in range(20000):
            case = cases.draw(1, index)
            for part in (case["math"], case["layout"], case["other"].get("first", {}), *case["other"].get("chain", [])):
                drawn[case["kind"]] |= set(part)
        for command, kinds in COMMANDS.items():
            flags = flags_of(command)
            known = GIVEN[command].union(*(drawn[kind] for kind in kinds),
                                         *(names for _, commands, names in UNDRAWN if command in commands))
            self.assertEqual(sorted(flags - known), [], command)
            self.assertEqual(sorted(GIVEN[command] - flags), [], f"GIVEN names flags that {command} lacks")

    def test_extreme_values_are_drawn_for_every_flag_of_every_command(self):
        text = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
        commands = re.findall(r"^  ([a-z]+(?: [a-z]+)?) {2,}\S", text.split("commands:")[1].split("flags:")[0], re.MULTILINE)
        self.assertEqual(sorted(commands), sorted(extreme.USUAL))
        self.assertEqual(extreme.SHARES.keys(), extreme.USUAL.keys())
        for command in commands:
            help_text = subprocess.run([PROGRAM, *command.split(), "--help"], capture_output=True, text=True, check=True).stdout
            known = extreme.known_flags(command, help_text)
            self.assertEqual(flags_of(command) - known.keys(), flags_of(command) & extreme.UNSEARCHED, command)


if __name__ == "__main__":
    unittest.main()
