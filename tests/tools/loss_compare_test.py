"""Tests tools/loss_compare.py with programs that only write a log."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/loss_compare.py"


class LossCompare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, losses, last="exit 0"):
        """A program whose run has these losses."""
        lines = "".join(f'{{"step":{i},"loss":{loss},"grad_norm":1.5,"step_ms":{len(name)}}}\\n'
                        for i, loss in enumerate(losses, 1))
        path = self.folder / name
        path.write_text("#!/bin/bash\nwhile [ \"$1\" != --out ]; do shift; done\nmkdir \"$2\"\n"
                        f"printf '{lines}' >\"$2/metrics.jsonl\"\n{last}\n")
        path.chmod(0o755)
        return str(path)

    def compare(self, *words):
        return subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True, timeout=30)

    def test_same_losses_are_the_same_whatever_the_times(self):
        result = self.compare("--assert-equal", self.program("a", [2.5, 1.25]), self.program("bb", [2.5, 1.25]))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "2 steps: losses and gradient norms are the same to the last digit\n")

    def test_last_digit_that_differs_is_reported_with_its_step(self):
        # These two are the same number in double precision.
        words = (self.program("a", [2.5, "1.0000000000000000", 4]), self.program("b", [2.5, "1.00000000000000001", 5]))
        result = self.compare(*words)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "3 steps: first difference in step 2: loss 1.0000000000000000 before, "
                         "1.00000000000000001 after\nlargest difference in step 3: loss 4 before, 5 after, relative 0.25\n")
        self.assertEqual(self.compare("--assert-equal", *words).returncode, 1)

    def test_loss_that_is_no_number_differs_from_all_others(self):
        result = self.compare("--assert-equal", self.program("a", [2.5]), self.program("b", ["null"]))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("loss 2.5 before, None after, relative inf", result.stdout)

    def test_run_that_fails_or_is_shorter_is_no_comparison(self):
        good = self.program("a", [2.5])
        result = self.compare(good, self.program("b", [2.5], "echo as asked >&2; exit 5"))
        self.assertEqual(result.returncode, 2)
        self.assertIn("ended with 5:\nas asked", result.stderr)
        result = self.compare(good, self.program("c", []))
        self.assertEqual(result.returncode, 2)
        self.assertIn("1 steps before and 0 after", result.stderr)

    def test_name_that_is_no_commit_is_refused(self):
        result = self.compare("no-such-commit", self.program("a", [2.5]))
        self.assertEqual(result.returncode, 2)
        self.assertIn("no-such-commit", result.stderr)


if __name__ == "__main__":
    unittest.main()
