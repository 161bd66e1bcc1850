"""Tests bench/lora_side_by_side.py with small programs instead of Cleave and PEFT."""
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
out = pathlib.Path(words[words.index("--out") + 1])
rows = pathlib.Path(words[words.index("--data") + 1]).read_text().splitlines()
assert len(rows) == 6 and all(len(json.loads(row)["input_ids"]) == 16 for row in rows), rows
out.mkdir()
speed = 600 if "--dora" in words else 1200
lines = [{{"step": 1, "tokens_per_s": 1, "peak_rss_bytes": 2**30, "loss": 5.0}},
         {{"step": 2, "tokens_per_s": speed, "peak_rss_bytes": 2**31, "loss": 4.0}},
         {{"eval_loss": 3.0}},
         {{"step": 3, "tokens_per_s": speed, "peak_rss_bytes": 2**31, "loss": 3.5}}]
(out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
"""

PYTHON = """#!{python}
import json, sys
words = sys.argv[1:]
if words[0] == "-c":
    print(json.dumps({{"torch": "1", "transformers": "2", "peft": "3"}}))
elif words[0].endswith("make_model.py"):
    print("a model")
elif "{fails}" == "yes":
    sys.exit("no memory")
else:
    print(json.dumps({{"tokens_per_s": 400, "peak_bytes": 2**32, "first_loss": 5.0, "last_loss": 3.6}}))
"""


class LoraSideBySide(unittest.TestCase):
    def run_bench(self, *flags, fails="no"):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-lora-side-"))
        for name, text in (("cleave", CLEAVE), ("python", PYTHON)):
            (folder / name).write_text(text.format(python=sys.executable, fails=fails), encoding="utf-8")
            (folder / name).chmod(0o755)
        self.json = folder / "all.json"
        return subprocess.run([sys.executable, str(SOURCE / "bench/lora_side_by_side.py"), "--cleave", str(folder / "cleave"),
                               "--python", str(folder / "python"), "--dtypes", "fp32", "--steps", "2", "--warmup", "1",
                               "--batch-size", "2", "--seq-len", "16", "--repeats", "2", "--json", str(self.json), *flags],
                              capture_output=True, text=True, check=False)

    def test_each_row_has_medians_of_both_programs(self):
        result = self.run_bench("--variants", "lora,dora")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = [line for line in result.stdout.splitlines() if line.startswith("| llama")]
        for row, ours, ratio in zip(rows, ("1200", "600"), ("3.00", "1.50"), strict=True):
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            self.assertEqual(cells[1:], [ours, "400", ratio, "2.00", "4.00", "5.0000, 3.5000", "5.0000, 3.6000"])
        facts = json.loads(self.json.read_text(encoding="utf-8"))
        self.assertEqual([len(row["values"]["Cleave"]) for row in facts["rows"]], [2, 2])
        self.assertIn("peft 3", result.stdout)

    def test_program_that_fails_is_named(self):
        result = self.run_bench("--variants", "lora", fails="yes")
        self.assertEqual(result.returncode, 1)
        self.assertIn("llama-135m, fp32, lora: PEFT failed with exit code 1:\nno memory", result.stderr)

    def test_unknown_words_are_refused(self):
        result = self.run_bench("--variants", "qlora")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--variants has 'qlora'; expected lora, dora, dropout, int8, nf4", result.stderr)


if __name__ == "__main__":
    unittest.main()
