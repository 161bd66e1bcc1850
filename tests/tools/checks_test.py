"""Each check, run in a small tree with one injected fault, must name the file and line of that fault."""
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
GOOD_HEADER = """#pragma once
#include "cleave/base/str.h"
namespace cleave::inline text {
/// Says something.
class Speaker {
 public:
  Speaker();
  /// Speaks `text`, at most `limit` letters.
  void say(const std::string& text, int limit = 3);
  void say_again();
  [[nodiscard]] int count() const { return count_; }
  int volume = 0;

 private:
  void whisper();
  int count_ = 0;
};
enum class Tone;
struct SpeakerOptions {
  int volume = 0;
};
namespace internal {
void hidden();
}
}  // namespace cleave::inline text
"""


class Checks(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-checks-"))
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree(SOURCE / "tools", self.folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(SOURCE / "run", self.folder / "run")
        subprocess.run(["git", "init", "-q", str(self.folder)], check=True)
        self.write(".gitignore", "__pycache__\n")
        self.write("cleave/base/str.h", "#pragma once\n")

    def write(self, path, text):
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text, encoding="utf-8")

    def check(self, name, *finds):
        result = subprocess.run([sys.executable, f"tools/check_{name}.py"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(result.stderr, "")
        self.assertEqual(result.returncode, 1 if finds else 0, result.stdout)
        for find in finds:
            self.assertIn(find, result.stdout)
        self.assertIn(f"{len(finds)} problems", result.stdout)

    def test_good_tree_passes_every_check(self):
        self.write("cleave/text/speaker.h", GOOD_HEADER)
        self.write("docs/page.md", "[run](../run)\n```console\n$ ./run test --full\n```\n```sh\nls\n```\n")
        for name in ("layers", "sizes", "types", "docs", "text"):
            with self.subTest(name):
                self.check(name)

    def test_layers_include_of_a_higher_module_is_named(self):
        self.write("cleave/nn/linear.h", "#pragma once\n")
        self.write("cleave/mesh/axis.h", '#pragma once\n#include "cleave/nn/linear.h"\n')
        self.check("layers", "cleave/mesh/axis.h:2: mesh includes cleave/nn/linear.h")

    def test_layers_libtorch_reached_through_a_chain_is_named(self):
        self.write("cleave/train/options.h", "#pragma once\n#include <ATen/Tensor.h>\n")
        self.write("cleave/cli/train.cc", '\n#include "cleave/train/options.h"\n')
        self.check("layers", "cleave/cli/train.cc:2: cli must not reach libtorch: cleave/train/options.h -> ATen/Tensor.h")

    def test_layers_unknown_module_is_named(self):
        self.write("cleave/stuff/a.cc", "int a;\n")
        self.check("layers", "cleave/stuff/a.cc:1: module 'stuff'")

    def test_text_retired_word_is_named_with_its_term(self):
        self.write("CONTRIBUTING.md", "| term | means | not |\n|---|---|---|\n| resume | continue a run | \"go on\" |\n")
        self.write("cleave/base/a.cc", "// Runs go on.\n// Cargo on the way.\n")
        self.check("text", "cleave/base/a.cc:1: 'go on' is retired; the glossary says: resume")

    def test_types_of_one_name_in_two_files_are_named(self):
        self.write("cleave/base/a.cc", "namespace cleave::inline base {\nnamespace {\nstruct Own {};\n}\nclass Sum {\n"
                   " struct Inner {};\n};\n}\n")
        self.write("cleave/text/b.h", "#pragma once\nnamespace cleave::inline text {\nstruct Own {};\nstruct Sum;\n"
                   "struct Sum::Inner { int a; };\n}\n")
        self.check("types", "cleave/text/b.h:5: cleave::Sum::Inner is defined at cleave/base/a.cc:6 too")
        self.write("cleave/text/b.h", "#pragma once\nnamespace cleave::inline text {\nenum class Sum { kOne };\n}\n")
        self.check("types", "cleave/text/b.h:3: cleave::Sum is defined at cleave/base/a.cc:5 too")
        self.write("cleave/text/b.h", "#pragma once\nnamespace cleave::inline text::sums {\nenum class Sum { kOne };\n}\n")
        self.check("types")

    def test_types_template_parameters_are_no_types(self):
        self.write("cleave/base/a.cc", "namespace cleave::inline base {\ntemplate <class T>\nstruct Sum { T t; };\n"
                   "template <template <class> class T>\nstruct Mean {};\n}\n")
        self.check("types")
        self.write("cleave/text/b.h", "#pragma once\nnamespace cleave::inline text {\ntemplate <class T>\nstruct Sum {};\n}\n")
        self.check("types", "cleave/text/b.h:3: cleave::Sum is defined at cleave/base/a.cc:2 too")

    def test_cuda_registers_spills_and_large_kernels_are_named(self):
        def run(log):
            self.write("kernels.log", log)
            return subprocess.run([sys.executable, "tools/cuda_registers.py", "kernels.log"], cwd=self.folder,
                                  capture_output=True, text=True)
        entry = ("ptxas info    : Compiling entry function '_Z3runI10NormKernelIfEE' for 'sm_80'\n"
                 "    %d bytes stack frame, %d bytes spill stores, 0 bytes spill loads\n"
                 "ptxas info    : Used %d registers, used 0 barriers\n")
        good = run(entry % (0, 0, 64))
        self.assertEqual((good.returncode, good.stdout.split()), (0, ["kernel", "sm_80", "NormKernel", "fp32", "64"]))
        for log, fault in ((entry % (0, 8, 64), "8 bytes spill stores"), (entry % (16, 0, 64), "16 bytes stack frame"),
                           (entry % (0, 0, 65), "NormKernel fp32 on sm_80: 65 registers"), ("", "names no kernel")):
            bad = run(log)
            self.assertEqual(bad.returncode, 1)
            self.assertIn(fault, bad.stdout)
        (self.folder / "kernels.log").unlink()
        missing = subprocess.run([sys.executable, "tools/cuda_registers.py", "kernels.log"], cwd=self.folder,
                                 capture_output=True, text=True)
        self.assertEqual(missing.returncode, 77)
        self.assertIn("skipped: kernels.log does not exist", missing.stdout)

    def test_reads_beyond_the_parameters_of_cuda_kernels_are_named(self):
        def run(body):
            self.write("kernels.ptx", ".visible .entry _Z3runI9SumKernelE(\n\t.param .align 8 .b8 run_param_0[32],\n"
                       f"\t.param .u64 run_param_1\n)\n{{\n{body}\tret;\n}}\n")
            return subprocess.run([sys.executable, "tools/cuda_parameters.py", "kernels.ptx"], cwd=self.folder,
                                  capture_output=True, text=True)
        address = "\tmov.b64 \t%rd1, run_param_0;\n\tmul.wide.s32 \t%rd2, %r1, 8;\n\tadd.s64 \t%rd3, %rd1, %rd2;\n"
        for read in ("ld.param.u64 \t%rd4, [%rd3+24];", "ld.param.u64 \t%rd4, [run_param_1];"):
            good = run(f"{address}\t{read}\n")
            self.assertEqual((good.returncode, good.stdout), (0, "1 kernels read only their parameters\n"))
        for read in ("ld.param.u64 \t%rd4, [%rd3+32];", "ld.param.v2.f32 \t{%f1, %f2}, [run_param_0+32];",
                     "add.s64 \t%rd5, %rd3, 40;\n\tld.param.u64 \t%rd6, [%rd5+-8];"):
            bad = run(f"{address}\t{read}\n")
            self.assertEqual(bad.returncode, 1)
            self.assertIn("SumKernel reads byte 32 of a parameter of 32 bytes", bad.stdout)
        (self.folder / "kernels.ptx").unlink()
        self.assertEqual(subprocess.run([sys.executable, "tools/cuda_parameters.py", "kernels.ptx"], cwd=self.folder,
                                        capture_output=True, check=False).returncode, 77)

    def test_types_outside_the_namespace_of_their_module_are_named(self):
        self.write("cleave/generate/a.cc", "namespace cleave {\nvoid f() {}\n}\n")
        self.check("types", "cleave/generate/a.cc:1: should be namespace cleave::inline generation")
        self.write("cleave/generate/a.cc", "namespace cleave::inline generation {\nvoid f() {}\n}\n")
        self.write("cleave/cli/b.cc", "namespace cleave::cli {\nvoid g() {}\n}\n")
        self.check("types")

    def test_sizes_long_function_is_found_past_braces_in_literals(self):
        body = '  call([](int x) { return "}{"; });  // }\n' * 59
        self.write("cleave/base/a.cc", "int f() {\n" + body[:-1] + "\n}\n")
        self.check("sizes", "cleave/base/a.cc:1: function of 61 lines")
        self.write("cleave/base/a.cc", "int f() {\n" + '  call();\n' * 58 + "}\n")
        self.check("sizes")

    def test_sizes_of_golden_files_count_together_after_compression(self):
        self.write("tests/golden/zeros.json", "0" * 3_000_000)
        self.check("sizes")
        for name in ("a.json", "sub/b.json"):  # hex digits take half a byte each
            self.write(f"tests/golden/{name}", random.Random(name).randbytes(1_000_000).hex())
        self.check("sizes", "tests/golden:0: 2")

    def test_sizes_long_file_many_parameters_and_two_bools_are_named(self):
        self.write("cleave/base/b.h", "void f(bool a, bool b);\nint g(int a, int b, int c, int d, int e, int h,\n"
                   "      std::map<int, int> f) { return a; }\n")
        self.write("notes.txt", "x\n" * 601)
        self.check("sizes", "cleave/base/b.h:1: two adjacent bool", "cleave/base/b.h:2: 7 parameters", "notes.txt:601: file of")

    def test_docs_each_kind_of_missing_comment_is_named(self):
        self.write("cleave/base/c.h", "#pragma once\nnamespace cleave {\nvoid f();\n\nclass C {\n public:\n  void g(int a);\n"
                   " private:\n  void h();\n};\n\n/// Doc.\nstruct D { int a; };\nvoid covered();\n\nenum class E { kA };\n"
                   "}\n#define CLEAVE_X 1\n")
        self.check("docs", "c.h:3: no /// for: void f()", "c.h:5: no /// for: class C", "c.h:7: no /// for: void g(int a)",
                   "c.h:16: no /// for: enum class E", "c.h:18: no /// for: #define CLEAVE_X")

    def test_docs_pages_show_only_what_exists(self):
        self.write("a.md", "```console\n$ ./run dance\n$ cleave sing\n```\n```sh\nif\n```\n[x](nope.md)\n")
        self.check("docs", "a.md:2: ./run has no command 'dance'", "a.md:3: cleave has no command 'sing'",
                   "a.md:6: not a shell script", "a.md:8: nope.md does not exist")

    def run_page(self, text):
        self.write("a.md", text)
        result = subprocess.run([sys.executable, "tools/run_docs.py", "--build", "build", "a.md"], cwd=self.folder,
                                capture_output=True, text=True)
        return result.returncode, result.stdout

    def test_run_docs_command_that_fails_is_named(self):
        code, log = self.run_page("```sh\necho 1\n```\n```sh\nfalse\n```\n")
        self.assertEqual(code, 1)
        self.assertIn("2 blocks of 1 pages run, 1 failed a.md:5", log)

    def test_run_docs_shown_line_that_is_not_printed_is_named(self):
        shown = "```sh\necho a line; echo another\n```\n\n```text\nanother\n```\n"
        self.assertEqual(self.run_page(shown)[0], 0)
        code, log = self.run_page(shown.replace("\nanother", "\nanothe"))
        self.assertEqual(code, 1)
        self.assertIn("a.md:2: the page shows a line that was not printed: anothe", log)
        self.assertEqual(self.run_page(shown.replace("```text", "About this:\n\n```text").replace("\nanother", "\nx"))[0], 0)

    def test_text_each_fault_is_named(self):
        self.write("cleave/base/utils.h", "#pragma once\n")
        self.write("a.md", "see /ro" "ot/x\ncaf\u00e9\n// TO" "DO\nend \nhttps:/" "/example.test/\n")
        self.check("text", "cleave/base/utils.h:0", "a.md:1: a path of one machine", "a.md:2: not ASCII",
                   "a.md:3: a note to be done later", "a.md:4: blanks", "a.md:5: a link")


if __name__ == "__main__":
    unittest.main()
