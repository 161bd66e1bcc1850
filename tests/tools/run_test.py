"""Tests ./run on machines that lack something, simulated by small programs first in PATH."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FETCH = "set -euo pipefail; source tools/setup.sh; ensure_libtorch; echo \"$CLEAVE_LIBTORCH\""


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-run-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "bin").mkdir()
        self.cache = self.folder / "cache"
        self.environment = dict(os.environ, PATH=f"{self.folder}/bin:{os.environ['PATH']}", CLEAVE_CACHE=str(self.cache))
        for name in ("CLEAVE_LIBTORCH", "CXX"):
            self.environment.pop(name, None)

    def fake(self, name, script):
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def run_in_source(self, *words):
        return subprocess.run(words, cwd=SOURCE, env=self.environment, capture_output=True, text=True, timeout=30)

    def refused(self, result, *texts, code=1):
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        for text in texts:
            self.assertIn(text, result.stderr)

    def test_alone_lists_the_commands(self):
        result = self.run_in_source("./run")
        self.assertEqual(result.returncode, 0, result.stderr)
        for command in ("build", "demo", "test", "lint", "bench", "search", "sanitize", "package", "fuzz", "docs", "format",
                        "clean"):
            self.assertRegex(result.stdout, rf"(?m)^  {command}\b")

    def test_unknown_command_and_flag_are_refused_by_name(self):
        self.refused(self.run_in_source("./run", "dance"), "unknown command 'dance'", code=2)
        self.refused(self.run_in_source("./run", "test", "--fast"), "unknown flag '--fast'", code=2)

    def test_help_of_a_command_builds_nothing(self):
        self.fake("g++", "echo 11")  # a build would be refused because of it
        for words in (("demo", "--help"), ("build", "--help"), ("test", "-h"), ("docs", "--help")):
            result = self.run_in_source("./run", *words)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue(result.stdout.startswith("usage: ./run COMMAND\n"), words)

    def test_wrong_words_are_refused_before_anything_is_built(self):
        self.fake("g++", "echo 11")  # a build would be refused because of it
        for words, text in ((("search",), "expected SEED COUNT"), (("search", "a", "5"), "expected SEED COUNT"),
                            (("bench", "trian"), "unknown kind 'trian'"), (("fuzz", "long"), "'long' is not a number"),
                            (("demo", "my.txt"), "demo: unknown word 'my.txt'"),
                            (("package", "wheel"), "package: unknown word 'wheel'")):
            result = self.run_in_source("./run", *words)
            self.refused(result, text, code=2)
            self.assertEqual(result.stdout, "")
            self.assertRegex(result.stderr, r"\Arun: [^\n]*\n\Z")
        for words in (("demo", "--data", "nope.txt"), ("demo", "--data=nope.txt")):
            result = self.run_in_source("./run", *words)
            self.refused(result, "--data nope.txt cannot be read")
            self.assertNotIn("g++", result.stderr)

    def test_commands_without_words_refuse_one(self):
        for name in ("g++", "dpkg", "dpkg-query", "git", "rm"):
            self.fake(name, f"touch {self.folder}/used; exit 1")  # any set-up, and clean, would use one of them
        for command in ("build", "sanitize", "mutants", "docs", "format", "clean", "pack-gpu"):
            result = self.run_in_source("./run", command, "my.txt")
            self.refused(result, code=2)
            self.assertEqual(result.stderr, f"run: {command}: unknown word 'my.txt'; expected nothing\n")
        self.assertFalse((self.folder / "used").exists())

    def test_old_compiler_is_named_with_its_version(self):
        self.fake("g++", "case $1 in -dumpversion) echo 11 ;; *) echo 'g++ 11' ;; esac")
        self.refused(self.run_in_source("./run", "build"), "g++ is version 11", "needs g++ 12 or newer")

    def test_full_disk_is_refused_before_anything_is_fetched(self):
        self.fake("df", "echo header; echo '/dev/x 100 90 2097152 50% /'")
        self.refused(self.run_in_source("bash", "-c", FETCH), "has 2048 MiB free", "needs about 3 GiB")
        self.assertEqual([path.name for path in self.cache.iterdir()], ["lock"])

    def test_failed_fetch_asks_for_the_network_and_leaves_no_library(self):
        self.fake("python3", "case $3 in --version) exit 0 ;; *) exit 1 ;; esac")
        self.refused(self.run_in_source("bash", "-c", FETCH), "is the network (or pip's index) reachable?")
        self.assertFalse((self.cache / "libtorch-2.13.0").exists())

    def test_with_nvcc_missing_cuda_libraries_are_fetched_once(self):
        root = self.cache / "libtorch-2.13.0"
        (root / "torch/lib").mkdir(parents=True)
        for name in ("libtorch_cpu.so", "libtorch_cuda.so"):
            (root / "torch/lib" / name).write_text("x")
        wheel = self.folder / "nvidia_nccl-x.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            file.writestr("nvidia/nccl/include/nccl.h", "x")
        self.fake("nvcc", "exit 0")
        self.fake("ldd", "echo '\tlibcufile.so.0 => not found'; echo '\tlibcudnn.so.9 => /usr/lib/libcudnn.so.9 (0x1)'")
        self.fake("python3", f"""if [ "$3" != --version ]; then
  echo "${{@: -2}}" >>{self.folder}/fetched
  while [ "$1" != --dest ]; do shift; done
  cp {wheel} "$2"
fi""")
        for _ in range(2):
            result = self.run_in_source("bash", "-c", FETCH + "; ensure_cuda")
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.folder / "fetched").read_text(), "nvidia-nccl-cu13==2.29.7 nvidia-cufile==1.15.1.6\n")
        self.assertTrue((root / "nvidia/nccl/include/nccl.h").exists())
        self.assertFalse((root / "wheels").exists())

    def test_two_clones_at_the_same_time_fetch_once_and_get_all_files(self):
        wheels = self.folder / "wheels"
        wheels.mkdir()
        with zipfile.ZipFile(wheels / "torch-2.13.0-x.whl", "w") as wheel:
            for name in ("lib/libtorch_cpu.so", "lib/libc10.so", "lib/libtorch_cuda.so", "include/ATen/ATen.h", "nn.py"):
                wheel.writestr(f"torch/{name}", "x")
        with zipfile.ZipFile(wheels / "nvidia_cuda_runtime-x.whl", "w") as wheel:
            wheel.writestr("nvidia/cu13/lib/libcudart.so.13", "x")
        self.fake("python3", f"""if [ "$3" != --version ]; then
  echo fetched >>{self.folder}/count
  while [ "$1" != --dest ]; do shift; done
  cp {wheels}/*.whl "$2"
fi""")
        both = [subprocess.Popen(["bash", "-c", FETCH], cwd=SOURCE, env=self.environment, stdout=subprocess.PIPE, text=True)
                for _ in range(2)]
        for process in both:
            output = process.communicate(timeout=30)[0]
            self.assertEqual(process.returncode, 0)
            self.assertEqual(output.splitlines()[-1], f"{self.cache}/libtorch-2.13.0/torch")
        self.assertEqual((self.folder / "count").read_text(), "fetched\n")
        files = {str(path.relative_to(self.cache / "libtorch-2.13.0"))
                 for path in (self.cache / "libtorch-2.13.0").rglob("*") if path.is_file()}
        wanted = {"torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/include/ATen/ATen.h",
                  "nvidia/cu13/lib/libcudart.so.13"}
        if shutil.which("nvcc"):
            wanted.add("torch/lib/libtorch_cuda.so")
        self.assertEqual(files, wanted)
        self.assertEqual(sorted(path.name for path in self.cache.iterdir()), ["libtorch-2.13.0", "lock"])


if __name__ == "__main__":
    unittest.main()
