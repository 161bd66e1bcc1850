"""Tests tools/package: the wheel's tag, bytes and record, and the versions that its texts name."""
import base64
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/package"))
import archives  # noqa: E402
import check  # noqa: E402
import container  # noqa: E402
import gpu_pack  # noqa: E402
import manual  # noqa: E402
import stage  # noqa: E402


class Package(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-package-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "staged/bin").mkdir(parents=True)
        shutil.copy("/bin/true", self.folder / "staged/bin/cleave")

    def glibc_of(self, symbols):
        with unittest.mock.patch.object(stage, "output", lambda *words: symbols):
            return stage.needed_glibc(self.folder / "staged")

    def test_tag_follows_glibc_and_libstdcpp(self):
        self.assertEqual(self.glibc_of("GLIBC_2.2.5 GLIBC_2.34 GLIBCXX_3.4.22"), 34)
        self.assertEqual(self.glibc_of("GLIBC_2.34 GLIBCXX_3.4.9 GLIBCXX_3.4.30"), 35)
        self.assertEqual(self.glibc_of("GLIBC_2.38 GLIBCXX_3.4.30"), 38)
        with self.assertRaisesRegex(stage.Problem, "GLIBCXX_3.4.99 is needed"):
            self.glibc_of("GLIBC_2.34 GLIBCXX_3.4.99")

    def test_gpu_pack_names_the_torch_of_the_build_and_is_refused_without_gpu_support(self):
        header = self.folder / "torch/include/torch/headeronly/version.h"
        header.parent.mkdir(parents=True)
        header.write_text("#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n")
        (self.folder / "CMakeCache.txt").write_text(f"CLEAVE_CUDA:STRING=AUTO\nCLEAVE_LIBTORCH:PATH={self.folder}/torch\n")
        self.assertEqual(gpu_pack.torch_version(self.folder), "2.11")
        with self.assertRaisesRegex(stage.Problem, "has no GPU support"):
            gpu_pack.make_pack(self.folder, self.folder / "pack")

    def test_wheel_has_a_true_record_a_program_that_runs_and_the_same_bytes_each_time(self):
        paths = []
        for name in ("one", "two"):
            (self.folder / name).mkdir()
            paths.append(archives.write_wheel(self.folder / "staged", self.folder / name, "1.2.3", "2.13.0"))
        self.assertEqual(paths[0].read_bytes(), paths[1].read_bytes())
        self.assertRegex(paths[0].name, r"^cleave-1\.2\.3-py3-none-manylinux_2_\d+_x86_64\.whl$")
        with zipfile.ZipFile(paths[0]) as wheel:
            names = wheel.namelist()
            rows = [row.rsplit(",", 2) for row in wheel.read("cleave-1.2.3.dist-info/RECORD").decode().splitlines()]
            self.assertEqual([row[0] for row in rows], names)
            for name, digest, size in rows[:-1]:
                data = wheel.read(name)
                self.assertEqual(int(size), len(data))
                wanted = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                self.assertEqual(digest, f"sha256={wanted}")
            self.assertEqual(wheel.getinfo("cleave/bin/cleave").external_attr >> 16 & 0o111, 0o111)
            self.assertIn("Requires-Dist: torch==2.13.*\n", wheel.read("cleave-1.2.3.dist-info/METADATA").decode())
            self.assertIn("cleave = cleave:main", wheel.read("cleave-1.2.3.dist-info/entry_points.txt").decode())
            self.assertIn("cleave/__init__.py", names)

    def test_texts_name_the_wheels_that_run_uses(self):
        wheels = " ".join(check.wheels())
        for name in ("tools/package/README.Debian", "tools/package/Containerfile", "docs/installing.md"):
            text = (ROOT / name).read_text()
            named = set(re.findall(r"torch==[\d.]+ nvidia-cuda-runtime==[\d.]+ nvidia-cuda-cupti==[\d.]+\d", text))
            self.assertEqual(named, {wheels}, name)

    def test_installed_cmake_file_has_the_line_that_packages_replace(self):
        self.assertEqual(len(stage.CONFIG_OLD.findall((ROOT / "cmake/CleaveConfig.cmake.in").read_text())), 1)

    def test_container_check_knows_all_steps(self):
        self.assertEqual([step for step, _ in container.steps()],
                         ["FROM", "RUN", "RUN", "COPY", "RUN", "ENV", "WORKDIR", "ENTRYPOINT"])

    def test_manual_has_every_command_and_flag_without_warnings(self):
        pages = self.folder / "man1"
        manual.write_manual(ROOT / "build/release/cleave", pages, "1.2.3")
        self.assertIn("cleave-bench-train.1", [page.name for page in pages.iterdir()])
        text = (pages / "cleave-train.1").read_text()
        self.assertRegex(text, r'^\.TH CLEAVE\\-TRAIN 1 "\d{4}-\d\d-\d\d" "Cleave 1\.2\.3" "Cleave"\n')
        for part in (".SS Optimizer",
                     ".TP\n.B \\-\\-lr RATE\npeak learning rate [0.0003]\n", ".B \\-\\-no\\-shuffle\n"):
            self.assertIn(part, text)
        for program in (["groff", "-man", "-ww", "-Tutf8", "-z"], ["mandoc", "-T", "lint", "-W", "warning"]):
            if shutil.which(program[0]):
                shown = subprocess.run([*program, *pages.iterdir()], capture_output=True, text=True, check=False)
                self.assertEqual(shown.stdout + shown.stderr, "")

    def test_manual_escapes_what_roff_reads(self):
        page = manual.page("cleave x", "1", "2026-01-01", "cleave x: it's it\n\nusage: cleave x\n\n  --a  .b \\c 'd'\n")
        self.assertIn("\n\\&.b \\ec \\(aqd\\(aq\n", page)

    def test_folder_without_a_build_is_refused_by_name(self):
        with self.assertRaisesRegex(stage.Problem, "holds no build; run ./run build first"):
            stage.stage(self.folder, self.folder / "out")
        old = self.folder / "packages/cleave-0.0.1-py3-none-any.whl"
        old.parent.mkdir()
        old.touch()
        run = subprocess.run(["python3", ROOT / "tools/package", "--build", self.folder, "--out", old.parent],
                             capture_output=True, text=True, check=False)
        self.assertEqual((run.returncode, run.stderr),
                         (1, f"package: {self.folder} holds no build; run ./run build first\n"))
        self.assertTrue(old.exists())

    def test_build_of_a_part_is_refused_with_the_missing_file(self):
        (self.folder / "cleave").touch()  # what ./run demo builds has no libcleave_mpi_*.so
        (self.folder / "cmake_install.cmake").write_text(
            f'file(INSTALL DESTINATION "${{CMAKE_INSTALL_PREFIX}}/lib" TYPE FILE FILES "{self.folder}/libcleave_mpi_openmpi.so")\n')
        with self.assertRaisesRegex(stage.Problem, "is not finished: libcleave_mpi_openmpi.so is missing; run ./run build first$"):
            stage.stage(self.folder, self.folder / "out")


if __name__ == "__main__":
    unittest.main()
