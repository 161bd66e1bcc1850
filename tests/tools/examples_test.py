"""The short examples stay short: own_model under 80 lines, custom_loop under 100, tensor_parallel under 60, each in one file;
encoder_decoder under 150."""
import pathlib
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
LIMITS = {"own_model": 80, "custom_loop": 100, "tensor_parallel": 60}


class Examples(unittest.TestCase):
    def test_short_examples_are_short(self):
        for name, limit in LIMITS.items():
            sources = sorted(path.name for path in (EXAMPLES / name).iterdir() if path.suffix in (".cc", ".h"))
            self.assertEqual(sources, ["main.cc"])
            lines = (EXAMPLES / name / "main.cc").read_text(encoding="utf-8").splitlines()
            self.assertLess(len(lines), limit, name)
            self.assertLessEqual(max(map(len, lines)), 100, name)

    def test_encoder_decoder_is_short(self):
        sources = [EXAMPLES / "encoder_decoder" / name for name in ("t5.h", "train.cc", "main.cc")]
        self.assertLess(sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources), 150)


if __name__ == "__main__":
    unittest.main()
