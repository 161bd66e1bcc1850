"""Tests which changes tools/mutation.py makes to a line, and which lines it leaves alone."""
import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import cpp_source  # noqa: E402
import mutation  # noqa: E402


def changes(*lines):
    """The changes of a function with these lines."""
    text = "\n".join(["constexpr int kLimit = 3 + 4;", "int f(int a, int b) {", *lines, "}", ""])
    with mock.patch.object(cpp_source, "read", return_value=text):
        return [change.after.strip() for options in mutation.changes_of("x.cc") for change in options]


class Mutation(unittest.TestCase):
    def test_condition_is_negated_and_its_comparison_changed(self):
        self.assertEqual(changes("  if (a < b) g();"), ["if (a <= b) g();", "if (!(a < b)) g();"])

    def test_check_loses_its_condition_and_keeps_its_words(self):
        self.assertEqual(changes('  CLEAVE_CHECK(a == b, Code::kIo, "at ", a + b,', '               " < ", a - b);'),
                         ['CLEAVE_CHECK(a != b, Code::kIo, "at ", a + b,',
                          'CLEAVE_CHECK((a == b) || true, Code::kIo, "at ", a + b,'])

    def test_statement_is_removed(self):
        self.assertEqual(changes("  x.y = a;", "  x.push(a);"), [";", ";"])

    def test_returned_value_is_negated_or_emptied(self):
        self.assertEqual(changes("  return a > b;"), ["return a >= b;", "return !(a > b);"])
        self.assertEqual(changes("  return g(a);"), ["return {};"])
        self.assertEqual(changes("  return true;"), ["return false;"])

    def test_words_and_what_only_takes_time_are_left_alone(self):
        self.assertEqual(changes("  v.reserve(a + b);", '  log_error("a < b", a + b);', '  throw Error(Code::kIo, a + b);',
                                 "  // a + b", "  return {};", "  return 0;", "  std::this_thread::sleep_for(a + b);",
                                 '  text = str("a", a + b,', "             a - b);"), [])


if __name__ == "__main__":
    unittest.main()
