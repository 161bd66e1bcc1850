"""Tests bench/trl_side_by_side.py with small programs instead of Cleave and TRL."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]

CLEAVE = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
value = lambda flag: words[words.index(flag) + 1]
if words[0] == "eval":
    is_tuned = pathlib.Path(value("--model")).name == "run"
    print(json.dumps({{"loss": 0.50 if is_tuned else 4.0, "perplexity": 1.0, "tokens": 70}}))
    sys.exit(0)
rows = [json.loads(line) for line in pathlib.Path(value("--data")).read_text().splitlines()]
assert len(rows) == 6 and all(row["messages"][-1]["role"] == "assistant" for row in rows), rows
model = pathlib.Path(value("--model"))
assert json.loads((model / "config.json").read_text()) == {{"model_type": "gpt2", "attn_pdrop": 0.0}}
assert "generation" in (model / "chat_template.jinja").read_text()
out = pathlib.Path(value("--out"))
out.mkdir()
(out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in [{{"loss": 4.1}}, {{"loss": 3.0}}]))
"""

TRL = """#!{python}
import json
if "{fails}" == "yes":
    raise SystemExit("no memory")
print(json.dumps({{"version": "9", "held_out_start": 4.0, "held_out_end": {end}, "held_out_tokens": {tokens},
                  "first_loss": 4.1, "steps": 2}}))
"""


class TrlSideBySide(unittest.TestCase):
    def run_bench(self, *flags, end="0.505", tokens="70", fails="no"):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-trl-side-"))
        for name, text in (("cleave", CLEAVE), ("python", TRL)):
            (folder / name).write_text(text.format(python=sys.executable, fails=fails, end=end, tokens=tokens),
                                       encoding="utf-8")
            (folder / name).chmod(0o755)
        (folder / "small").mkdir()
        (folder / "small/config.json").write_text('{"model_type": "gpt2", "attn_pdrop": 0.1}', encoding="utf-8")
        return subprocess.run([sys.executable, str(SOURCE / "bench/trl_side_by_side.py"), "--cleave", str(folder / "cleave"),
                               "--python", str(folder / "python"), "--models", str(folder / "small"), "--chats", "7",
                               "--held-out", "3", "--batch-size", "3", "--micro-batch-size", "1", *flags],
                              capture_output=True, text=True, check=False)

    def test_losses_that_agree_are_listed(self):
        result = self.run_bench()
        self.assertEqual(result.returncode, 0, result.stderr)
        row = next(line for line in result.stdout.splitlines() if line.startswith("| small"))
        self.assertEqual([cell.strip() for cell in row.strip("|").split("|")],
                         ["small", "4.0000", "4.0000", "4.1000", "4.1000", "0.5000", "0.5050", "-0.99 %",
                          "2 steps, 70 tokens"])

    def test_other_losses_or_other_trained_tokens_fail(self):
        for result in (self.run_bench(end="0.52"), self.run_bench(tokens="71")):
            self.assertEqual(result.returncode, 1)
            self.assertIn("small: the programs do not agree within 2 %", result.stderr)

    def test_program_that_fails_is_named(self):
        result = self.run_bench(fails="yes")
        self.assertEqual(result.returncode, 1)
        self.assertIn("small: TRL failed with exit code 1:\nno memory", result.stderr)

    def test_batch_of_no_whole_micro_batches_is_refused(self):
        result = self.run_bench("--batch-size", "4", "--micro-batch-size", "3")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--batch-size 4 must be a multiple of --micro-batch-size", result.stderr)


if __name__ == "__main__":
    unittest.main()
