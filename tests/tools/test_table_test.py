"""Tests the table that tools/test_table.py makes of ctest's results."""
import pathlib
import sys
import unittest
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import test_table  # noqa: E402

RESULTS = """<testsuite tests="4">
  <testcase name="comm.Kill" status="run"><system-out>[ RUN ]
measured: R1 200 kills: median 60 ms
[ OK ]
</system-out></testcase>
  <testcase name="fault.Chaos" status="run"><system-out>round 0: bits 1
1 of 1 rounds ended with the bits of the unbroken run (seed 3)
</system-out></testcase>
  <testcase name="comm.Broken" status="fail"><failure message=""/><system-out>""" + "more\n" * 40 + """measured: 3
Expected: true
</system-out></testcase>
  <testcase name="mesh.Gpu" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>
cuda_test.cc:10: Skipped
this machine has no GPU

[  SKIPPED ]</system-out></testcase>
</testsuite>"""
MORE = """<testsuite tests="1">
  <testcase name="fault.Fuzz" status="run"><system-out>zip_fuzz: 5 inputs in 1 s
12 inputs in total
</system-out></testcase>
</testsuite>"""


class TestTable(unittest.TestCase):
    def test_counts_numbers_and_reasons_are_shown(self):
        self.assertEqual(test_table.table([ElementTree.fromstring(RESULTS), ElementTree.fromstring(MORE)]), [
            "3 passed, 1 failed, 1 not run",
            "", "measured:",
            "  comm.Kill: R1 200 kills: median 60 ms",
            "  fault.Chaos: 1 of 1 rounds ended with the bits of the unbroken run (seed 3)",
            "  comm.Broken: 3",
            "  fault.Fuzz: 12 inputs in total",
            "", "not run:", "  mesh.Gpu: this machine has no GPU",
            "", "failed:", "  comm.Broken", *["    more"] * 38, "    measured: 3", "    Expected: true"])


if __name__ == "__main__":
    unittest.main()
