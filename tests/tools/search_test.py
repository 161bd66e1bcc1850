"""Tests tools/search: how it draws cases, judges a program's end, shrinks failures, and bounds differences."""
import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/search"
sys.path.insert(0, str(TOOL))

import adapters  # noqa: E402
import one_rank  # noqa: E402
import cases  # noqa: E402
import data  # noqa: E402
import forecasts  # noqa: E402
import kinds  # noqa: E402
import levels  # noqa: E402
import models  # noqa: E402
import program  # noqa: E402
import quantized  # noqa: E402
import runs  # noqa: E402
import shrink  # noqa: E402
import tensor_file  # noqa: E402
import tolerance  # noqa: E402
import training  # noqa: E402
import transformers_oracle  # noqa: E402


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def program(self, script):
        """Writes a program that runs this shell script."""
        path = os.path.join(self.folder, "cleave")
        pathlib.Path(path).write_text("#!/bin/bash\n" + script + "\n", encoding="ascii")
        os.chmod(path, 0o755)
        return path


def forbids_all_beams(case):
    """Whether every beam of a prompt has used all ids, which may not repeat, before it is as long as allowed or ended."""
    math_flags, model = case["math"], models.full(case["model"])
    if math_flags.get("num-beams", 1) == 1 or math_flags.get("no-repeat-ngram-size") != 1:
        return False
    unused = [set(range(model["vocab"])) - set(prompt) for prompt in case["other"]["prompts"]]
    end = math_flags.get("eos-id", model["eos_id"])
    return any(len(ids) < math_flags["max-new-tokens"] and end not in ids for ids in unused)


class Drawing(Folder):
    def test_few_cases_of_a_level_have_every_kind_and_are_the_first_where_they_can(self):
        def kind(index):
            case = cases.draw(1, index)
            return case.get("drawn", case["kind"])
        indexes = levels.indexes_with_every_kind(1, 60)
        self.assertEqual((len(set(indexes)), {kind(index) for index in indexes}), (60, set(cases.KINDS)))
        later = [index for index in indexes if index >= 60]
        for index in later:
            self.assertNotIn(kind(index), {kind(other) for other in range(index)})
        self.assertEqual(len(set(range(60)) & set(indexes)), 60 - len(later))
        self.assertEqual(levels.indexes_with_every_kind(1, 500), list(range(500)))

    def test_big_tables_have_more_than_ten_million_weights(self):
        tables = [model["vocab"] * model["heads"] * model["head_dim"] for model in
                  (cases.draw(1, index, "big")["model"] for index in range(100)) if "vocab" in model and model["vocab"] > 50000]
        self.assertGreater(len(tables), 20)
        self.assertGreater(min(tables), 10**7)

    def test_case_depends_on_seed_and_index_alone(self):
        first = [cases.draw(7, i) for i in range(200)]
        self.assertEqual(first, [cases.draw(7, i) for i in range(200)])
        self.assertNotEqual(first, [cases.draw(8, i) for i in range(200)])
        self.assertEqual({case.get("drawn", case["kind"]) for case in first}, set(cases.KINDS))

    def test_case_survives_json(self):
        drawn = [cases.draw(3, index) for index in range(100)]
        self.assertEqual(drawn, json.loads(json.dumps(drawn)))

    def test_frequencies_of_longrope_change_only_in_cases_that_ask_for_it(self):
        drawn = [cases.draw(5, index, "generate") for index in range(400)]
        longrope = [case for case in drawn if case["model"].get("rope") == "longrope"]
        asking = [case for case in longrope if "short_length" in case["model"]]
        self.assertTrue(asking)
        self.assertLess(len(asking), len(longrope))
        for case in longrope:
            if case in asking:
                continue
            config = models.decoder_config(models.full(case["model"]))
            original = config["rope_scaling"]["original_max_position_embeddings"]
            self.assertTrue(all(len(prompt) > original for prompt in case["other"]["prompts"]))

    def test_some_cases_forbid_all_beams(self):
        self.assertGreater(sum(forbids_all_beams(cases.draw(1, index, "generate")) for index in range(500)), 5)

    def test_some_cases_are_wide(self):
        drawn = [cases.draw(1, index, "eval") for index in range(400)]
        self.assertGreater(sum(case["model"].get("head_dim", 4) >= 32 and case["layout"]["batch-size"] >= 15 for case in drawn), 10)
        is_long = [case["data"].get("longest", 0) > 24 and case["math"]["dtype"] in ("bf16", "int8") for case in drawn]
        self.assertGreater(sum(is_long), 10)
        prompts = [len(prompt) for index in range(200) for prompt in cases.draw(1, index, "generate")["other"]["prompts"]]
        self.assertGreater(sum(length > 48 for length in prompts), 10)
        large = [models.shapes_of(models.full(cases.draw(1, index, "large")["model"])) for index in range(50)]
        self.assertGreater(sum(sum(math.prod(shape) for _, shape in shapes) > 1_000_000 for shapes in large), 25)

    def test_same_model_is_the_same_bytes_and_a_nudge_changes_each_weight_by_its_size(self):
        model = {"family": "gpt2", "seed": 5}
        for name, changes in (("a", {}), ("b", {}), ("c", {"nudge": 1, "nudge_size": 2.0**-10})):
            models.write(os.path.join(self.folder, name), {**model, **changes, "file_dtype": "fp64"})
        files = [pathlib.Path(self.folder, name, "model.safetensors") for name in "abc"]
        self.assertEqual(files[0].read_bytes(), files[1].read_bytes())
        plain, nudged = (tensor_file.read(file) for file in (files[0], files[2]))
        for name, (_, values) in plain.items():
            for a, b in zip(values, nudged[name][1]):
                self.assertAlmostEqual(abs(b / a - 1), 2.0**-10, delta=1e-12)

    def test_nudged_model_of_a_quantised_run_is_in_fp32(self):
        case = {"model": {"family": "gpt2", "seed": 5, "file_dtype": "bf16"}, "data": {}, "other": {}}
        path = pathlib.Path(runs.Inputs(case, self.folder).nudged(1, 2.0**-10, "int8", None), "model.safetensors")
        self.assertIn(b'"F32"', path.read_bytes()[8:2000])

    def test_nudged_checkpoint_has_its_config_and_no_state(self):
        checkpoint, nudged = os.path.join(self.folder, "step"), os.path.join(self.folder, "nudged")
        models.write(checkpoint, {"family": "gpt2", "seed": 5, "file_dtype": "fp32"})
        pathlib.Path(checkpoint, "optimizer.safetensors").write_bytes(b"state")
        self.assertEqual(models.write_nudged(nudged, checkpoint, 1, 2.0**-10, "fp64"), nudged)
        self.assertEqual(sorted(os.listdir(nudged)), ["config.json", "model.safetensors"])
        plain, other = (tensor_file.read(os.path.join(folder, "model.safetensors")) for folder in (checkpoint, nudged))
        for name, (shape, values) in plain.items():
            self.assertEqual(other[name][0], shape)
            for a, b in zip(values, other[name][1]):
                self.assertAlmostEqual(abs(b / a - 1), 2.0**-10, delta=1e-12)


class TensorFiles(Folder):
    def test_bf16_is_rounded_to_nearest_with_ties_to_even(self):
        # 1 + 2^-8 lies between 1 and 1 + 2^-7: the even one of the two is 1. 1 + 3 * 2^-8 goes up to 1 + 2^-6.
        bits = tensor_file.to_bf16([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20])
        self.assertEqual(list(bits), [0x3F80, 0x3F80, 0x3F82, 0x3F81])

    def test_file_is_read_back_in_every_dtype(self):
        values = [0.5, -2.0, 0.0, 1024.0]
        path = os.path.join(self.folder, "x.safetensors")
        tensor_file.write(path, {d: ([2, 2], d, tensor_file.encoded(values, d)) for d in tensor_file.NAMES})
        with open(path, "rb") as file:
            self.assertEqual(struct.unpack("<Q", file.read(8))[0] % 8, 0)
        for shape, got in tensor_file.read(path).values():
            self.assertEqual((shape, list(got)), ([2, 2], values))


class Ends(Folder):
    def end(self, script, limit_s=10):
        runner = program.Program(self.program(script), self.folder)
        try:
            runner.answer("train", limit_s=limit_s)
        except (program.Failure, program.Refused) as error:
            return getattr(error, "what", "refused")
        return "answered"

    def test_answer_and_clear_refusal(self):
        self.assertEqual(self.end("echo hello"), "answered")
        self.assertEqual(self.end("echo 'cleave: --tp is 9; give 1 to 4' >&2; exit 2"), "refused")
        self.assertEqual(self.end("echo 'cleave: warning: x' >&2; echo 'cleave: --tp is 9' >&2; exit 3"), "refused")

    def test_all_steps_beyond_fp16(self):
        self.assertEqual(self.end("echo 'cleave: all 3 steps overflowed fp16, so ...' >&2; exit 9"), "refused")
        with self.assertRaises(program.Refused):  # rounding may let the other side make a step
            kinds.either(self.overflow, lambda: "answered")

    def overflow(self):
        raise program.Refused(program.OVERFLOWED)

    def test_what_is_no_refusal(self):
        self.assertEqual(self.end("kill -SEGV $$"), "signal")
        self.assertEqual(self.end("echo 'cleave: a bug' >&2; exit 70"), "exit 70")
        self.assertEqual(self.end("echo 'cleave: not finite' >&2; exit 9"), "exit 9")
        self.assertEqual(self.end("exit 2"), "refusal")
        self.assertEqual(self.end("echo 'terminate called' >&2; exit 2"), "refusal")
        self.assertEqual(self.end("echo 'cleave: one' >&2; echo 'cleave: two' >&2; exit 2"), "refusal")
        self.assertEqual(self.end("echo 'cleave: did you mean \"x\"; this is a bug in cleave' >&2; exit 2"), "refusal")
        self.assertEqual(self.end("exec sleep 100", limit_s=0.2), "hang")

    def test_time_without_a_cpu_is_no_hang(self):
        with unittest.mock.patch.object(program, "starved_seconds", return_value=60):
            self.assertEqual(self.end("sleep 0.5", limit_s=0.1), "answered")
        # As if both had been stopped for a minute.
        start = time.monotonic()
        with unittest.mock.patch.object(program.time, "monotonic", lambda: 60 * (time.perf_counter() > later) + start):
            later = time.perf_counter() + 0.1
            self.assertEqual(self.end("sleep 0.5", limit_s=10), "answered")

    def test_a_thread_that_shares_its_cpu_waits_for_it(self):
        cpu = str(min(os.sched_getaffinity(0)))
        busy = subprocess.Popen(["taskset", "-c", cpu, "bash", "-c", "while :; do :; done & while :; do :; done"],
                                start_new_session=True)
        self.addCleanup(busy.wait)
        self.addCleanup(os.killpg, busy.pid, signal.SIGKILL)
        end = time.monotonic() + 60
        while program.starved_seconds(busy.pid) < 0.1 and time.monotonic() < end:
            pass
        self.assertGreaterEqual(program.starved_seconds(busy.pid), 0.1)


    def test_restart_before_a_refusal_is_no_second_error(self):
        err = ("cleave: restart 1 of 3: rank 1 (pid 7) was killed by signal 9\ncleave: rank 2: the batch of step 3 has no labels\n"
               "cleave: resume: x\ncleave: not restarted: a restart would fail in the same way\n")
        ended = program.Ended(["launch"], 4, "", err, 1.0, False, 0, 0.1)
        self.assertEqual(ended.errors(), ["cleave: rank 2: the batch of step 3 has no labels"])


class Shrinking(unittest.TestCase):
    def test_only_what_the_failure_needs_is_left(self):
        case = next(c for c in (cases.draw(1, i, "train") for i in range(500))
                    if c["layout"].get("fsdp") and c["model"].get("family") == "gpt2" and len(c["layout"]) > 5)

        def fails(smaller):
            return smaller["model"].get("family") == "gpt2" and bool(smaller["layout"].get("fsdp"))

        small = shrink.shrink(case, fails)
        self.assertEqual(small["layout"], {"fsdp": True})
        self.assertEqual(small["model"], {"family": "gpt2"})
        self.assertLessEqual(set(small["math"]), shrink.NEEDED)

    def test_it_stops_after_so_many_tries(self):
        asked = []
        case = {"kind": "train", "model": {}, "data": {}, "math": {"steps": 10**9}, "layout": {}, "other": {}}

        def fails(smaller):
            asked.append(smaller)
            return smaller["math"]["steps"] > 1

        shrink.shrink(case, fails, max_tries=7)
        self.assertEqual(len(asked), 7)


class Tolerances(unittest.TestCase):
    def test_bound_is_the_formula(self):
        # 2 layers: 30 operations; sums of 64 in fp32.
        bounds = tolerance.bounds("fp32", 2, 64, labels=16)
        self.assertAlmostEqual(bounds.number, 4 * 2.0**-24 * math.sqrt(30 * 64))
        self.assertAlmostEqual(bounds.mean, bounds.number / 4 + 2.0**-24)
        # bf16 products are summed in fp32, so only the parts of a layout count.
        self.assertAlmostEqual(tolerance.bounds("bf16", 2, 10**6, parts=3).number, 4 * 2.0**-8 * math.sqrt(30 * 4))

    def test_rounding_of_a_real_sum_is_inside_and_a_lost_term_is_not(self):
        def single(x):
            return struct.unpack("f", struct.pack("f", x))[0]

        terms = [math.cos(i) for i in range(64)]
        sums = []
        for order in (terms, terms[::-1]):
            total = 0.0
            for term in order:
                total = single(total + single(term))
            sums.append(total)
        size = tolerance.norm2(terms)
        bound = tolerance.bounds("fp32", 1, 64).number * size
        self.assertLessEqual(abs(sums[0] - sums[1]), bound)
        self.assertGreater(abs(sums[0] - sum(terms[1:])), 100 * bound)

    def test_norm_of_many_elements_has_a_larger_bound_only_where_it_is_summed_in_its_own_dtype(self):
        # Seen: 5e-13 between two orders of 1e7 squares.
        few, many = (tolerance.bounds("fp64", 1, 64, labels=9, squares=count).norm for count in (100, 10_000_000))
        self.assertGreater(many, 5e-13 + few)
        self.assertEqual(*(tolerance.bounds("fp32", 1, 64, squares=count).norm for count in (100, 10_000_000)))

    def test_token_whose_window_is_masked_is_found(self):
        for mask, window, wanted in (([1, 0, 0, 1], 2, True), ([1, 0, 0, 1], 3, False), ([1, 0, 1, 0], 1, True), ([0, 1], 5, True),
                                     ([1, 0, 0, 0], 0, False), ([], 2, False)):
            self.assertEqual(transformers_oracle.has_masked_window(mask, window), wanted, (mask, window))


class OneRank(Folder):
    """Checks of the run that all others are compared with."""

    def work_of(self, math_flags, form="ids"):
        work = unittest.mock.Mock()
        work.case, work.dtype = {"math": math_flags}, "fp32"
        work.path = lambda name: os.path.join(self.folder, name)
        work.inputs.data = {"form": form}
        return work

    def checkpoint(self, step, weight, average, grad_norm=1.0):
        with open(os.path.join(self.folder, "metrics.jsonl"), "a", encoding="ascii") as file:
            print(json.dumps({"step": step, "grad_norm": grad_norm}), file=file)
        folder = pathlib.Path(self.folder, f"step_{step:08d}")
        folder.mkdir()
        for name, tensors in (("model", {"w": weight}), ("optimizer", {"ema.w": average})):
            tensor_file.write(folder / f"{name}.safetensors",
                              {k: ([len(v)], "fp32", tensor_file.encoded(v, "fp32")) for k, v in tensors.items()})

    def test_average_of_the_wrong_weights_is_found(self):
        self.checkpoint(1, [1.0, 2.0], [1.0, 2.0])
        self.checkpoint(2, [3.0, 0.0], [1.5, 1.5])
        one_rank.check_averages(self.work_of({"ema": 0.75}), self.folder)
        self.checkpoint(3, [5.0, 1.0], [1.5, 1.5])  # should be 2.375 and 1.375
        with self.assertRaises(program.Failure) as raised:
            one_rank.check_averages(self.work_of({"ema": 0.75}), self.folder)
        self.assertIn("step 3", raised.exception.text)

    def test_step_without_labels_keeps_the_average(self):
        self.checkpoint(1, [1.0], [1.0])
        self.checkpoint(2, [3.0], [1.5])
        self.checkpoint(3, [3.0], [1.5], grad_norm=None)  # with labels it would be 1.875
        one_rank.check_averages(self.work_of({"ema": 0.75}), self.folder)
        self.checkpoint(4, [3.0], [1.5])
        with self.assertRaises(program.Failure):
            one_rank.check_averages(self.work_of({"ema": 0.75}), self.folder)

    def test_average_that_is_nan_is_found(self):
        self.checkpoint(1, [1.0, 2.0], [1.0, math.nan])
        with self.assertRaises(program.Failure):
            one_rank.check_averages(self.work_of({"ema": 0.75}), self.folder)

    def test_merged_weight_that_is_wrong_or_nan_is_found(self):
        base, wanted = {"w": ([2], [1.0, 2.0])}, {"w": ([2], [1.5, 2.5])}
        kinds.check_merged(wanted, wanted, base)
        for values in ([1.5, 2.6], [1.5, math.nan], [1.5]):
            with self.assertRaises(program.Failure):
                kinds.check_merged({"w": ([len(values)], values)}, wanted, base)

    def test_documents_are_rows_whose_parts_share_a_token(self):
        source, path = (os.path.join(self.folder, name) for name in ("texts.jsonl", "rows.jsonl"))
        pathlib.Path(source).write_text('{"text": "abcdef"}\n{"text": "g"}\n', encoding="ascii")
        data.write_rows_of_documents(path, source, "text rows", 4)
        rows = [json.loads(line)["input_ids"] for line in pathlib.Path(path).read_text(encoding="ascii").splitlines()]
        self.assertEqual(rows, [[97, 98, 99, 100], [100, 101, 102, 256], [103, 256]])

    def test_pairs_are_cut_and_equal_ones_left_out(self):
        path = os.path.join(self.folder, "pairs.jsonl")
        rows = [{"prompt": "ab", "chosen": "c", "rejected": "d"}, {"prompt": "abcd", "chosen": "e", "rejected": "f"}]
        pathlib.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")
        self.assertEqual(data.ids_of_pairs(path, 4), [[[[97, 98, 99, 256], 2], [[97, 98, 100, 256], 2]]])

    def test_texts_are_packed_into_the_fullest_sequence_with_room(self):
        texts = [{"input_ids": [number] * length} for number, length in enumerate((3, 6, 9, 2, 5, 4, 4))]
        places = [[text["input_ids"][0] for text in sequence] for sequence in data.packed(texts, 8)]
        self.assertEqual(places, [[0, 4], [1, 3], [2], [5, 6]])

    def test_chats_have_labels_in_answers_and_the_ends_of_their_turns(self):
        path = os.path.join(self.folder, "chats.jsonl")
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]
        pathlib.Path(path).write_text(json.dumps({"messages": turns}) + "\n", encoding="ascii")
        question, answer = b"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n", b"bc<|im_end|>\n"
        row, = data.rows_of_chats(path, 200, False)
        self.assertEqual(bytes(row["input_ids"]), question + answer)
        self.assertEqual(row["labels"], [-100] * len(question) + list(answer))
        row, = data.rows_of_chats(path, len(question) + 1, True)
        self.assertEqual(row["labels"], list(question + b"b"))
        self.assertEqual(data.rows_of_chats(path, len(question), False), [])

    def test_merged_adapter_is_the_weight_plus_the_scaled_product(self):
        for family, turned in (("llama", False), ("gpt2", True)):
            model = models.write(os.path.join(self.folder, family), {"family": family, "layers": 1})
            for changes in ({}, {"dora": True}):
                paths = adapters.write(os.path.join(self.folder, f"{family} {changes}"),
                                       {"rank": 2, "alpha": 3, "seed": 1, **changes}, model, turned)
                parts, merged = (tensor_file.read(os.path.join(folder, name)) for folder, name in
                                 zip(paths, ("adapter_model.safetensors", "model.safetensors")))
                name = next(n for n in parts if n.endswith("lora_A.weight")).removesuffix(".lora_A.weight")
                (_, width), a = parts[name + ".lora_A.weight"]
                (out, _), b = parts[name + ".lora_B.weight"]
                path = name.removeprefix("base_model.model.") + ".weight"
                base = tensor_file.read(os.path.join(model, "model.safetensors"))[path][1]
                for o in range(out):
                    at = [i * out + o if turned else o * width + i for i in range(width)]
                    row = [base[p] + 1.5 * (b[2 * o] * a[i] + b[2 * o + 1] * a[width + i]) for i, p in enumerate(at)]
                    factor = parts[name + ".lora_magnitude_vector"][1][o] / tolerance.norm2(row) if changes else 1
                    for p, x in zip(at, row):
                        self.assertAlmostEqual(merged[path][1][p], factor * x, places=5)


class Quantized(unittest.TestCase):
    def test_int4_groups_are_decoded_and_a_wrong_code_is_found(self):
        # Two rows of one group: element i of the first is i - 8 and i - 20, which 4 bits hold exactly and not.
        rows = [[i % 16 - 8 for i in range(32)], [float(i - 20) for i in range(32)]]
        step = 31 / 15
        codes = [i % 16 * 17 for i in range(16)]
        codes += [round(i / step) | round((i + 16) / step) << 4 for i in range(16)]
        stored = {"w.int4": ([2, 16], codes), "w.int4_scales": ([2, 1], [1.0, step]), "w.int4_mins": ([2, 1], [8.0, 20.0])}
        original = {"w": ([2, 32], rows[0] + rows[1]), "norm": ([1], [1.0])}
        self.assertEqual(quantized.decoded_int4([2, 16], codes, [1.0, step], [8.0, 20.0])[1][:32], rows[0])
        self.assertEqual(quantized.check_int4(original, stored), 1)
        for place in (0, 15, 16, 31):
            wrong = list(codes)
            wrong[place] = wrong[place] >> 4 | (wrong[place] & 15) << 4  # elements i and i + 16 exchanged
            wrong[place] ^= 2
            with self.assertRaises(program.Failure):
                quantized.check_int4(original, {**stored, "w.int4": ([2, 16], wrong)})

    def test_turned_int4_matrix_is_compared_by_columns(self):
        columns = [[(7 * i + c) % 15 - 7 for i in range(32)] for c in range(2)]
        for column in columns:
            column[0] = -8  # of the largest magnitude: the scale is 1
        codes = [(c[i] + 8) | (c[i + 16] + 8) << 4 for c in columns for i in range(16)]
        stored = {"w.int4_t": ([2, 16], codes), "w.int4_scales": ([2, 1], [1.0, 1.0])}
        values = [columns[c][i] for i in range(32) for c in range(2)]
        self.assertEqual(quantized.check_int4({"w": ([32, 2], values)}, stored), 1)
        with self.assertRaises(program.Failure):
            quantized.check_int4({"w": ([32, 2], values[::-1])}, stored)

    def test_gguf_bound_is_half_a_step(self):
        row = [127.0, *[i / 2 for i in range(31)]]
        self.assertAlmostEqual(quantized.gguf_bound("q8_0", row, "fp32"), 0.5 + 127 / 2048, delta=1e-4)
        self.assertEqual(quantized.gguf_bound("bf16", row, "bf16"), 0)
        self.assertEqual(quantized.gguf_bound("fp32", row, "fp16"), 0)
        self.assertEqual(quantized.gguf_bound("q8_0", row[:5], "fp32"), 127 / 2048 + 2.0**-24)
        original = {"x.weight": ([1, 32], row)}
        quantized.check_gguf(original, {"x.weight": ([1, 32], [round(x) for x in row])}, "q8_0", "fp32")
        with self.assertRaises(program.Failure):
            quantized.check_gguf(original, {"x.weight": ([1, 32], row[::-1])}, "q8_0", "fp32")
        with self.assertRaises(program.Failure):
            quantized.check_gguf(original, {}, "q8_0", "fp32")


class Forecasts(unittest.TestCase):
    MODEL = models.full({"family": "llama", "layers": 1})

    def ranks(self, layout, dtype_bytes):
        """A dry run of a Llama on tp ranks, which share matrices and repeat norms; dp ranks repeat both or share all of it."""
        tp, dp = layout.get("tp", 1), layout.get("dp", 1)
        rows = []
        for rank in range(tp * dp):
            parameters = []
            for name, shape in models.decoder_shapes(self.MODEL):
                whole = math.prod(shape) // (tp if len(shape) == 2 else 1)
                parameters.append({"name": name, "held": whole // 2 if "fsdp" in layout else whole})
            elements = sum(p["held"] for p in parameters)
            rows.append({"rank": rank, "pp": 0, "dp": rank // tp, "tp": rank % tp, "parameters": parameters,
                         "elements": elements, "weights": dtype_bytes * elements})
        return rows

    def what(self, layout, dtype, rows, forecast):
        try:
            forecasts.expect_shares(self.MODEL, layout, rows)
            forecasts.expect_bytes(dtype, layout, rows, [{"ranks": [{"weights": bytes_} for bytes_ in forecast]}])
        except program.Failure as failure:
            return failure.text
        return "sound"

    def test_sound_forecast(self):
        # 31 x 8 embeddings and as many outputs, 4 x 8 x 8 of attention, 3 x 8 x 12 of the MLP, 3 norms of 8.
        self.assertEqual(self.ranks({}, 4)[0]["elements"], 2 * 31 * 8 + 4 * 64 + 3 * 96 + 3 * 8)
        for layout, dtype, each, weights in (({}, "fp32", 4, 1064 * 4), ({}, "bf16", 6, 1064 * 6), ({"dp": 2}, "fp64", 8, 1064 * 8),
                                             ({"tp": 2}, "fp32", 4, 544 * 4), ({"dp": 2, "fsdp": True}, "bf16", 4, 532 * 4)):
            self.assertEqual(self.what(layout, dtype, self.ranks(layout, each), [weights]), "sound", layout)

    def test_wrong_forecast_is_found(self):
        def wrong(change, layout=None, forecast=544 * 4):
            rows = self.ranks(layout or {"tp": 2}, 4)
            change(rows)
            return self.what(layout or {"tp": 2}, "fp32", rows, [forecast])

        self.assertIn("plan forecasts [2175]", wrong(lambda rows: None, forecast=2175))
        self.assertIn("the same weights", wrong(lambda rows: [row["parameters"].pop() for row in rows]))
        self.assertIn("model.norm.weight", wrong(lambda rows: rows[1]["parameters"][-2].update(held=0)))
        self.assertIn("lm_head.weight", wrong(lambda rows: rows[0]["parameters"][-1].update(held=31 * 8)))
        self.assertIn("rank 1 has 2177 bytes", wrong(lambda rows: rows[1].update(weights=2177)))
        # ZeRO-1 keeps a second copy of its part, and one copy over dp.
        self.assertIn("numbers of model.embed_tokens.weight", wrong(lambda rows: None, {"dp": 2, "zero": 1}))


class ClusterCommands(unittest.TestCase):
    COMMAND = ("cleave train --model 'a b.json' --data FILES --out DIR --batch-size 6 --seq-len 8 --dtype bf16 --reduce-dtype bf16 "
               "--device cuda --tp 1 --pp 1 --dp 3 --micro-batch-size 2 --fsdp")
    GIVEN = {"batch-size": 6, "micro-batch-size": 2, "seq-len": 8, "dtype": "bf16", "reduce-dtype": "bf16", "optimizer": "adamw"}

    def test_flags_are_read_as_a_shell_does(self):
        flags = forecasts.flags_in(self.COMMAND)
        self.assertEqual((flags["model"], flags["dp"], flags["fsdp"]), ("a b.json", "3", True))

    def test_command_without_what_was_given_is_found(self):
        forecasts.expect_command(self.GIVEN, 3, self.COMMAND)
        forecasts.expect_command({**self.GIVEN, "optimizer": "muon"}, 3, self.COMMAND + " --optimizer muon")
        for given, ranks, command in ((self.GIVEN, 3, self.COMMAND.replace(" --reduce-dtype bf16", "")),
                                      (self.GIVEN, 3, self.COMMAND.replace("--batch-size 6", "--batch-size 8")),
                                      (self.GIVEN, 3, self.COMMAND.replace("--micro-batch-size 2", "--micro-batch-size 1")),
                                      ({**self.GIVEN, "optimizer": "muon"}, 3, self.COMMAND),
                                      (self.GIVEN, 6, self.COMMAND), (self.GIVEN, 3, self.COMMAND.replace("cuda", "cpu"))):
            with self.assertRaises(program.Failure):
                forecasts.expect_command(given, ranks, command)


class Kills(Folder):
    def test_all_but_references_run_on_the_device(self):
        train, on_gpu = ["train", "--model", "m", "--plain-kernels=norm"], ["--device", "cuda"]
        self.assertEqual(program.device_words(train, "cuda"), on_gpu)
        self.assertEqual(program.device_words(["launch", "-n", "2", "--", "cleave", *train], "cuda"), on_gpu)
        for words in ([*train, *program.REFERENCE, "--save-every", "1"], ["convert", "m"], ["launch", "-n", "2", "--", "cleave", "verify"],
                      ["launch", "--help"], ["launch", "-n", "2", "--"], ["launch", "-n", "2", "--", "ls"]):
            self.assertEqual(program.device_words(words, "cuda"), [])
        self.assertEqual(program.device_words(train, "cpu"), [])

    def test_a_run_ends_after_its_steps_and_of_launched_ranks_one(self):
        script = "for i in 1 2 3 4 5 6; do echo row >>metrics.jsonl; sleep 0.05; done; wait"
        metrics = pathlib.Path(self.folder, "metrics.jsonl")
        for rank, ends in ((None, -9), (1, 0)):
            metrics.unlink(missing_ok=True)
            runner = program.Program(self.program(("sleep 9 & sleep 0.1 & " if rank else "") + script), self.folder)
            killer = training.Killer(self.folder, 2, rank and 0)
            ended = runner.run("train", watch=killer)
            self.assertTrue(killer.has_killed)
            self.assertEqual(ended.code, ends, ended.err)
            self.assertLess(ended.seconds, 5)
            self.assertEqual(len(metrics.read_text().splitlines()) < 6, rank is None)


class CommandLine(Folder):
    def search(self, *words):
        return subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True, timeout=50)

    def test_failure_is_shrunk_printed_kept_and_repeated(self):
        path = self.program("echo 'cleave: a bug' >&2; exit 70")
        words = ("1", "3", "--kind", "eval", "--program", path, "--results", self.folder)
        done = self.search(*words)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout.count("FAILED"), 3)
        lines = [line for line in done.stdout.splitlines() if "--replay" in line]
        case = lines[0].split("'")[1]
        self.assertEqual(json.loads(case)["layout"], {})
        again = self.search("--replay", case, "--program", path)
        self.assertEqual(again.returncode, 1)
        self.assertIn("failed: exit 70", again.stdout)

    def test_answer_without_sequences_is_found(self):
        # What generate once printed when all beams were forbidden, on one rank and in parallel.
        path = self.program("""prompts=
            while [ $# -gt 0 ]; do [ "$1" = --prompt-ids ] && prompts="$prompts $2"; shift; done
            for ids in $prompts; do echo "{\\"prompt_ids\\": [$ids], \\"sequences\\": []}"; done""")
        forms = {"prompt_file", "as_text", "config"}  # in which this program does not look for prompts
        first = next(i for i in range(100) if forms.isdisjoint(cases.draw(1, i, "generate")["other"]))
        done = self.search("1", "1", "--first", str(first), "--kind", "generate", "--program", path, "--results", self.folder,
                           "--no-shrink")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("sequences: 0 sequences instead of", done.stdout)

    def test_finished_cases_are_not_run_again(self):
        path = self.program(f"echo >>{self.folder}/count; echo 'cleave: not here' >&2; exit 2")
        words = ("1", "4", "--kind", "eval", "--program", path, "--results", self.folder)
        first = self.search(*words)
        count = pathlib.Path(self.folder, "count")
        self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
        runs_of_first = len(count.read_text().splitlines())
        self.assertEqual(runs_of_first, 8)  # the reference and the case, four times
        self.search(*words)
        self.assertEqual(len(count.read_text().splitlines()), runs_of_first)
        self.search("1", "5", *words[2:])
        self.assertEqual(len(count.read_text().splitlines()), runs_of_first + 2)


if __name__ == "__main__":
    unittest.main()
