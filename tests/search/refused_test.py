"""usage: refused_test.py PROGRAM [SUITE]

The table of refused combinations in docs/layouts.md: it has the messages of the program and, of a list of flags, every one that
`cleave train` refuses and every pair of the others that it refuses."""
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.path.abspath(sys.argv.pop(1))
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 24, "intermediate_size": 20,
          "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4,
          "max_position_embeddings": 32}
FILES = {"sizes.json": json.dumps(CONFIG), "text.txt": "a" * 2000, "plan.json": '{"lm_head": {"style": "colwise"}}',
         "rows.jsonl": '{"input_ids": [1, 2, 3], "label": 0}\n{"input_ids": [4, 5], "label": 1}\n'}
# Where the flags have no others.
USUAL = {"--data": "text.txt", "--seq-len": "16", "--batch-size": "4", "--steps": "4"}
# Two of them that have a flag in common are no combination.
FLAGS = (
    "--tp 2", "--tp 7", "--pp 2", "--pp 5", "--dp 2", "--dp 5", "--ep 2", "--zero 1", "--fsdp", "--sequence-parallel",
    "--plan plan.json", "--schedule-pp gpipe", "--schedule-pp 1f1b", "--schedule-pp interleaved", "--schedule-pp zero-bubble",
    "--virtual-pipeline 2", "--virtual-pipeline 3", "--micro-batch-size 3", "--micro-batch-size 5", "--recompute selective",
    "--dtype fp16", "--dtype fp64", "--reduce-dtype bf16", "--optimizer muon", "--packing", "--lora 2",
    "--task classify --data rows.jsonl", "--task mlm", "--task dpo", "--async-save", "--save-every 1", "--eval-every 1",
    "--eval-every 1 --eval-data text.txt", "--early-stop 2", "--steps 4 --epochs 1", "--warmup 2", "--warmup 5",
    "--schedule constant", "--schedule wsd --decay-steps 3", "--decay-steps 3", "--min-lr 1e-5", "--min-lr 1", "--seq-len 33")
HEAD = "| flags | exit code | message |\n|---|---|---|\n"
# The last check before training fails, so that nothing is trained.
TOO_LATE, LAST = " --record-step 1000000", "--record-step is 1000000; expected at most"


def names_in(flags):
    return {word for word in flags.split() if word.startswith("--")}


def table_in_docs():
    page = (ROOT / "docs/layouts.md").read_text(encoding="ascii")
    return HEAD + page.split(HEAD)[1].split("\n\n")[0] + "\n"


class Refused(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, text in FILES.items():
            pathlib.Path(self.folder, name).write_text(text, encoding="ascii")

    def train(self, flags):
        usual = [word for name, value in USUAL.items() if name not in names_in(flags) for word in (name, value)]
        words = [PROGRAM, "train", "--model", "sizes.json", "--out", "run", *usual, *flags.split()]
        return subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=False)

    def row(self, flags):
        ran = self.train(flags)
        self.assertIn("cleave: ", ran.stderr, flags)
        message = ran.stderr.rsplit("cleave: ", 1)[1].strip().replace("|", "\\|")
        return f"| `{flags}` | {ran.returncode} | {message} |\n"

    def test_table_in_docs_has_the_messages_of_the_program(self):
        rows = re.findall(r"^\| `(.*?)` \| .*\n", table_in_docs(), re.MULTILINE)
        self.assertTrue(rows)
        self.assertEqual(table_in_docs(), HEAD + "".join(map(self.row, rows)))


class RefusedFull(Refused):
    """To update the page, paste the table that the failure prints."""
    maxDiff = None

    def refuses(self, flags):
        ran = self.train(flags + TOO_LATE)
        self.assertNotEqual(ran.returncode, 0, flags)
        return LAST not in ran.stderr

    def test_table_in_docs_has_every_refused_flag_and_pair(self):
        refused = [flags for flags in FLAGS if self.refuses(flags)]
        for a, b in itertools.combinations([flags for flags in FLAGS if flags not in refused], 2):
            if names_in(a).isdisjoint(names_in(b)) and self.refuses(f"{a} {b}"):
                refused.append(f"{a} {b}")
        self.assertEqual(table_in_docs(), HEAD + "".join(map(self.row, refused)))


if __name__ == "__main__":
    unittest.main()
