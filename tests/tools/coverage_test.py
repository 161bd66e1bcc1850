"""Tests the commands that tools/coverage.py changes, and its report of a trace."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import coverage  # noqa: E402
import cpp_source  # noqa: E402

COMM = cpp_source.ROOT / "cleave/comm"


class Coverage(unittest.TestCase):
    def test_only_sources_that_are_measured_are_counted(self):
        def command(path):
            return ["g++", "-fpch-preprocess", "-O3", "-c", str(path)]

        words = coverage.counted(command(COMM / "launch.cc"))
        self.assertEqual((words[0][:7], words[-3:]), ("clang++", ["-O3", "-c", str(COMM / "launch.cc")]))
        self.assertIn("-fcoverage-mapping", words)
        for path in (COMM / "launch_test.cc", cpp_source.ROOT / "cleave/nn/norm.cc", cpp_source.ROOT / "tests/fault/run.cc"):
            self.assertEqual(coverage.counted(command(path)), command(path))

    def test_line_is_reached_if_any_of_its_copies_is(self):
        trace = f"SF:{COMM}/a.h\nDA:3,0\nDA:4,2\nDA:5,0\nDA:6,0\nend_of_record\nSF:{COMM}/a.h\nDA:3,1\nDA:8,0\nend_of_record\n"
        self.assertEqual(coverage.report(coverage.lines_of(trace), "comm"),
                         ["comm: 2 of 5 lines reached (40.0 %)", "  cleave/comm/a.h: 5-6, 8"])

    def test_other_modules_are_left_out(self):
        self.assertEqual(coverage.report({f"{COMM}/a.cc": {1: True}}, "format"), ["format: 0 of 0 lines reached (0.0 %)"])


if __name__ == "__main__":
    unittest.main()
