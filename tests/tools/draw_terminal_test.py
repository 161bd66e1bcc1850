"""tools/draw_terminal.py: the picture holds the captured text, and docs/demo.svg is that of docs/demo.txt."""
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as tree

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = "{http://www.w3.org/2000/svg}text"


def draw(capture, *title):
    with tempfile.TemporaryDirectory() as folder:
        source, picture = pathlib.Path(folder) / "capture.txt", pathlib.Path(folder) / "picture.svg"
        source.write_text(capture, encoding="utf-8")
        subprocess.run([sys.executable, str(ROOT / "tools/draw_terminal.py"), str(source), str(picture), *title], check=True)
        return picture.read_text(encoding="utf-8")


def lines_of(picture):
    return [element.text for element in tree.fromstring(picture).iter(TEXT)]


class DrawTerminal(unittest.TestCase):
    def test_lines_are_drawn_with_markup_escaped(self):
        self.assertEqual(lines_of(draw("$ ./run demo\n\n#include <a&b>\n")), ["$ ./run demo", "#include <a&b>"])

    def test_middle_of_progress_lines_is_left_out(self):
        steps = [f"step {i}/9  loss 1" for i in range(1, 10)]
        self.assertEqual(lines_of(draw("\n".join(steps))), [*steps[:2], "...", *steps[-2:]])

    def test_long_lines_are_wrapped_without_losing_words(self):
        words = " ".join(f"word{i}" for i in range(60))
        lines = lines_of(draw(words))
        self.assertLessEqual(max(map(len, lines)), 100)
        self.assertEqual(" ".join(" ".join(lines).split()), words)

    def test_picture_of_the_demo_is_that_of_its_capture(self):
        picture = (ROOT / "docs/demo.svg").read_text(encoding="utf-8")
        title = next(tree.fromstring(picture).iter("{http://www.w3.org/2000/svg}title")).text
        self.assertEqual(draw((ROOT / "docs/demo.txt").read_text(encoding="utf-8"), title), picture)


if __name__ == "__main__":
    unittest.main()
