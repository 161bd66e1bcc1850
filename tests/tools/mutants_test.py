"""Tests of tests/mutants/apply.py in a small tree, and that the table of mutants and their tests fit together."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

MUTANTS = pathlib.Path(__file__).resolve().parents[1] / "mutants"
SOURCE = "int f(int a) {\n  if (a > 3) return 0;\n  g(a);\n  g(a);\n  return a;\n}\n"
EARLY = '@@ f.early cleave/f.cc\n int f(int a) {\n+  if (mutant_enabled("f.early")) return 1;\n'
ANY = '@@ f.any cleave/f.cc\n-  if (a > 3) return 0;\n+  if (a > 3 && !mutant_enabled("f.any")) return 0;\n'


class Apply(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-mutants-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "tests/mutants").mkdir(parents=True)
        (self.folder / "cleave").mkdir()
        shutil.copy(MUTANTS / "apply.py", self.folder / "tests/mutants")
        (self.folder / "cleave/f.cc").write_text(SOURCE, encoding="utf-8")

    def apply(self, *blocks):
        (self.folder / "tests/mutants/faults.diff").write_text("# Mutants.\n\n" + "\n".join(blocks), encoding="utf-8")
        return subprocess.run([sys.executable, str(self.folder / "tests/mutants/apply.py"), str(self.folder / "out")],
                              capture_output=True, text=True)

    def assert_refused(self, words, *blocks):
        result = self.apply(*blocks)
        self.assertEqual(result.returncode, 1)
        self.assertIn(words, result.stderr)

    def test_all_mutants_of_a_file_are_in_its_copy(self):
        result = self.apply(ANY, EARLY)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "cleave/f.cc\n", ""))
        self.assertEqual((self.folder / "out/cleave/f.cc").read_text(encoding="utf-8"),
                         '#include "tests/mutants/mutant.h"\n'
                         'int f(int a) {\n  if (mutant_enabled("f.early")) return 1;\n'
                         '  if (a > 3 && !mutant_enabled("f.any")) return 0;\n  g(a);\n  g(a);\n  return a;\n}\n')
        self.assertEqual((self.folder / "cleave/f.cc").read_text(encoding="utf-8"), SOURCE)

    def test_unchanged_copy_is_not_written_again(self):
        self.apply(ANY)
        before = (self.folder / "out/cleave/f.cc").stat().st_mtime_ns
        self.apply(ANY)
        self.assertEqual((self.folder / "out/cleave/f.cc").stat().st_mtime_ns, before)

    def test_mutant_whose_lines_are_not_there_or_not_unique_is_named(self):
        self.assert_refused("mutant f.any: cleave/f.cc has these lines 0 times", EARLY, ANY.replace("-  if (a > 3", "-  if (a > 4"))
        self.assert_refused("mutant f.g: cleave/f.cc has these lines 2 times",
                            '@@ f.g cleave/f.cc\n-  g(a);\n+  if (!mutant_enabled("f.g")) g(a);\n')
        self.assert_refused("mutant f.any: cleave/gone.cc does not exist", ANY.replace("f.cc", "gone.cc"))

    def test_two_mutants_of_one_line_are_named(self):
        self.assert_refused("line 2 by mutant f.any too", ANY, ANY.replace("f.any", "f.all"))

    def test_mutant_that_asks_for_another_name_is_named(self):
        self.assert_refused('mutant f.any: its added lines ask for [\'f.all\']; expected mutant_enabled("f.any")',
                            ANY.replace('("f.any")', '("f.all")'))

    def test_flag_is_refused_and_makes_no_folder(self):
        result = subprocess.run([sys.executable, str(MUTANTS / "apply.py"), "--help"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("usage: apply.py", result.stderr)
        self.assertFalse((self.folder / "--help").exists())

    def test_line_outside_of_a_block_is_named(self):
        self.assert_refused("faults.diff:3: expected", " g(a);\n")


class Table(unittest.TestCase):
    def test_every_test_of_the_table_exists(self):
        table = (MUTANTS / "CMakeLists.txt").read_text(encoding="utf-8")
        named = set(re.findall(r"\b([A-Z]\w+)\.([A-Z]\w+)\)", table))
        sources = [path for folder in ("cleave", "tests") for path in (MUTANTS.parents[1] / folder).rglob("*_test.cc")]
        found = {test for path in sources
                 for test in re.findall(r"\bTEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", path.read_text(encoding="utf-8"))}
        self.assertGreater(len(named), 40)
        self.assertEqual(named - found, set())

    def test_mutants_apply_and_each_has_a_test(self):
        subprocess.run([sys.executable, str(MUTANTS / "apply.py")], check=True)
        faults = (MUTANTS / "faults.diff").read_text(encoding="utf-8")
        tests = (MUTANTS / "CMakeLists.txt").read_text(encoding="utf-8")
        self.assertEqual(set(re.findall(r"^@@ (\S+)", faults, re.MULTILINE)),
                         set(re.findall(r"^cleave_(?:mutant|hostile|found)\((\S+)", tests, re.MULTILINE)))


if __name__ == "__main__":
    unittest.main()
