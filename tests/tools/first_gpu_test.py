"""Tests tools/first_gpu.sh in a folder like that of ./run pack-gpu, with a fake program."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Writes losses as a run does; LOSS is that of runs on the "GPU", FAILS a command that ends with 70.
PROGRAM = r"""#!/bin/bash
command=$1 device=cpu out=
while [ $# -gt 0 ]; do
  case $1 in --device) device=$2 ;; --out) out=$2 ;; --json) json=1 ;; esac
  shift
done
[ "$command" != "${FAILS:-}" ] || exit 70
case $command in
  doctor) [ -z "${json:-}" ] || echo '{"cleave": {"CUDA": "none; a test"}}' ;;
  train)
    mkdir -p "$out"
    [ "$device" = cpu ] && loss=5 || loss=${LOSS:-5}
    for step in 1 2; do echo "{\"step\": $step, \"loss\": $loss, \"tokens_per_s\": 10}"; done >"$out/metrics.jsonl"
    ;;
  generate) echo text ;;
  *) ;;
esac
"""


class FirstGpu(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-first-gpu-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "bin").mkdir()
        shutil.copy(ROOT / "tools/first_gpu.sh", self.folder)
        (self.folder / "LICENSE").write_text("text")
        (self.folder / "bin/cleave").write_text(PROGRAM)
        (self.folder / "bin/cleave").chmod(0o755)

    def run_script(self, *flags, **variables):
        """(exit code, {part: result}, the report)"""
        report = self.folder / "report"
        words = [str(self.folder / "first_gpu.sh"), "--out", str(report), *flags]
        done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=50)
        rows = [line.split() for line in done.stdout.splitlines()[:-1]]
        return done.returncode, {row[0]: row[1] for row in rows}, report.read_text() if report.exists() else done.stderr

    def test_parts_that_need_a_gpu_are_skipped_on_the_cpu(self):
        code, results, report = self.run_script(
            "--device", "cpu", "--only", "doctor,first_step,unit_tests,verify,train,resume,generate,layouts,nccl,sanitizer")
        self.assertEqual(code, 0, report)
        wanted = dict.fromkeys(("doctor", "first_step", "verify", "train", "resume", "generate", "layouts"), "passed")
        wanted.update(dict.fromkeys(("unit_tests", "nccl", "sanitizer"), "skipped"))
        self.assertEqual(results, wanted)
        self.assertIn("9 models and types, 0 failed", report)
        self.assertIn("== layouts: passed (0)", report)

    def test_without_a_first_step_the_other_parts_do_not_run(self):
        code, results, _ = self.run_script("--device", "cpu", "--only", "doctor,first_step,resume,generate", FAILS="train")
        self.assertEqual((code, results), (1, {"doctor": "passed", "first_step": "FAILED"}))

    def test_wrong_losses_and_a_program_that_fails_are_failures(self):
        code, results, report = self.run_script("--device", "cuda", "--only", "verify,train", LOSS="5.2", FAILS="verify")
        self.assertEqual(code, 1)
        self.assertEqual(results, {"verify": "FAILED", "train": "FAILED"})
        self.assertIn("9 models and types, 9 failed", report)
        self.assertIn("losses differ by 4.0e-02 at most; allowed 2e-2", report)
        self.assertIn("4 of 4 differ from the CPU", report)

    def test_gpu_that_the_program_does_not_see_is_a_failure(self):
        code, results, report = self.run_script("--device", "cuda", "--only", "doctor")
        self.assertEqual((code, results), (1, {"doctor": "FAILED"}))
        self.assertIn("CUDA: none; a test", report)

    def test_no_time_left_is_reported(self):
        code, results, report = self.run_script("--device", "cpu", "--only", "doctor", "--minutes", "0")
        self.assertEqual((code, results), (1, {"doctor": "skipped"}))
        self.assertIn("no time left", report)

    def test_wrong_flags_are_refused_by_name(self):
        for flags in (["--device", "tpu"], ["--minutes", "x"], ["--fast"]):
            code, _, text = self.run_script(*flags)
            self.assertEqual(code, 2)
            self.assertIn(flags[-1], text)


if __name__ == "__main__":
    unittest.main()
