"""Tests how tools/search tells rounding from faults: confirm.py, and what calls it."""
import math
import pathlib
import sys
import unittest
import unittest.mock

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/search"
sys.path.insert(0, str(TOOL))

import comparison  # noqa: E402
import confirm  # noqa: E402
import forecasts  # noqa: E402
import kinds  # noqa: E402
import program  # noqa: E402
import runs  # noqa: E402
import tolerance  # noqa: E402


class Judgements(unittest.TestCase):
    def test_difference_is_explained_by_what_nudges_do_and_by_nothing_less(self):
        self.assertTrue(confirm.ROUNDS[0].explains(5e-7, [1e-7, 2e-7], "fp32", 16))
        self.assertFalse(confirm.ROUNDS[0].explains(1e-4, [1e-7, 2e-7], "fp32", 16))
        self.assertFalse(confirm.ROUNDS[0].explains(0.0, [], "fp32", 16))

    def test_number_that_most_nudges_change_by_more_than_half_is_random(self):
        responses = [90.0, 2.0, 60.0, 70.0]
        self.assertTrue(confirm.ROUNDS[0].explains(1e4, responses, "bf16", 16, size=80))
        self.assertFalse(confirm.ROUNDS[0].explains(1e4, responses, "bf16", 16, size=200))
        self.assertFalse(confirm.ROUNDS[0].explains(1e4, responses[:3], "bf16", 16, size=80))
        self.assertFalse(confirm.ROUNDS[0].explains(math.inf, responses, "bf16", 16, size=80))

    def test_larger_nudges_bound_a_difference_themselves(self):
        last = confirm.ROUNDS[-1]
        size = last.size(tolerance.UNIT["fp32"], "fp32", 16)
        self.assertEqual(size, tolerance.amplified(tolerance.UNIT["fp32"], "fp32", 16))
        self.assertTrue(last.explains(2e-4, [1e-7, 3e-4], "fp32", 16))  # one of them flips the sign of a small gradient
        self.assertTrue(last.explains(1.9e-4, [1e-7, 1e-4], "fp32", 16))  # the next draw may be above the largest
        self.assertFalse(last.explains(2.1e-4, [1e-7, 1e-4], "fp32", 16))
        self.assertEqual((confirm.rounds_of("fp64")[-1], confirm.rounds_of("bf16")[-1]), (last, confirm.ROUNDS[1]))

    def test_margin_that_no_nudge_changes_is_bounded_by_the_next_step_beside_torch_alone(self):
        def rows(second_loss):
            return [{"loss": math.log(2), "grad_norm": 1.0, "reward_margin": 0.0},
                    {"loss": second_loss, "grad_norm": 1.0, "reward_margin": 1e-4}]

        work = unittest.mock.Mock(dtype="fp32")
        work.inputs.sum_length.return_value = 16
        problem = ("loss", 1, math.log(2) - 6e-5, math.log(2))

        def judge(is_torch):
            metrics = {"reference": rows(0.6930), "a": rows(0.69301), "b": rows(0.69308)}
            with (unittest.mock.patch.object(confirm, "nudged", return_value=["a", "b"]),
                  unittest.mock.patch.object(runs, "metrics_of", side_effect=metrics.get)):
                comparison.judge_run(work, "reference", ([problem], []), confirm.ROUNDS[0], "fp32", is_torch)

        judge(is_torch=True)
        with self.assertRaises(program.Failure):
            judge(is_torch=False)
        self.assertEqual(comparison.steps_to_compare({"loss": 0.69}, 3, True), (3,))

    def test_other_ids_are_a_tie_if_a_nudge_changes_them_there_whatever_else_it_changes(self):
        def rows(first_score, *ids):
            return [{"prompt_ids": [1], "sequences": [{"ids": [4], "score": first_score}]},
                    {"prompt_ids": [2], "sequences": [{"ids": each, "score": -1.0} for each in ids]}]

        work = unittest.mock.Mock(dtype="fp32")
        work.inputs.sum_length.return_value = 16
        reference = rows(-2.0, [5, 6, 7], [8, 9])
        found = kinds.Difference(1, 0, 1, "ids", "[5, 9], [5, 6, 7]", 0)

        def judge(*nudged):
            with unittest.mock.patch.object(confirm, "nudged", return_value=nudged):
                kinds.judge_generated(work, found, reference, None, "fp32")

        judge(rows(-2.5, [5, 3, 7], [8, 9]))  # other scores of the first prompt do not hide the token
        judge(reference, rows(-2.0, [5], [8, 9]))
        for other in (reference, rows(-2.0, [5, 6, 3], [8, 9]), rows(-2.0, [5, 6, 7], [3, 9])):
            with self.assertRaises(program.Failure):
                judge(other)

    def test_number_that_no_nudged_run_has_is_not_bounded(self):
        # All nudged runs skip the step in fp16.
        self.assertTrue(confirm.ROUNDS[0].explains(3.2, [math.nan] * 4, "fp16", 16))
        self.assertTrue(confirm.ROUNDS[0].explains(3.2, [math.nan] * 3 + [1e-7], "fp16", 16))
        # Two runs that have the number bound it, and a side without the number is no difference of rounding.
        self.assertFalse(confirm.ROUNDS[0].explains(3.2, [math.nan, 1e-7, 2e-7], "fp16", 16))
        self.assertFalse(confirm.ROUNDS[0].explains(math.inf, [math.nan] * 4, "fp16", 16))
        self.assertFalse(confirm.ROUNDS[0].explains(math.nan, [math.nan] * 4, "fp16", 16))

    def test_metric_that_is_wrong_is_found(self):
        bounds = tolerance.bounds("fp32", 2, 64)
        row = {"step": 1, "loss": 3.5, "grad_norm": 2.0, "lr": 1e-3, "tokens": 8}
        self.assertEqual(list(runs.metric_differences([dict(row)], [row], bounds)), [])
        for name, value in (("loss", 3.503), ("grad_norm", 2.01), ("grad_norm", None), ("loss", math.nan)):
            found = list(runs.metric_differences([{**row, name: value}], [row], bounds))
            self.assertEqual([each[0] for each in found], [name])
        for name, value in (("lr", 1.1e-3), ("tokens", 9)):
            with self.assertRaises(program.Failure):
                list(runs.metric_differences([{**row, name: value}], [row], bounds))

    def test_nudged_run_that_overflows_bounds_the_steps_before_others_are_skipped(self):
        def rows(*norms):
            return [{"loss": 2.0 + i, "grad_norm": norm} for i, norm in enumerate(norms)]

        reference = rows(None, None, 1.0)
        off = [{**row, "loss": row["loss"] + 0.25} for row in rows(None, None, None)]
        self.assertEqual(comparison.response_at(off, reference, "loss", 3), 0.25)
        self.assertTrue(math.isnan(comparison.response_at(off, reference, "grad_norm", 3)))
        other = rows(1.0, None, 1.0)  # its weights are different after the first step
        self.assertEqual(comparison.response_at(other, reference, "loss", 1), 0)
        self.assertTrue(math.isnan(comparison.response_at(other, reference, "loss", 2)))
        self.assertTrue(math.isnan(comparison.response_at(other[:1], reference, "loss", 2)))

    def test_early_stop_is_decided_by_rounding_only_if_evaluations_are_near(self):
        bounds = tolerance.bounds("fp32", 2, 64)
        for losses, is_near in (((3.5, 3.5 + 1e-7), True), ((3.5, 3.6), False), ((3.5,), False),
                                ((3.5, 3.6, 3.7, 3.6 + 1e-7), False)):  # the last two are not near the best
            self.assertEqual(comparison.is_near_best([{"eval_loss": loss} for loss in losses], bounds), is_near, losses)

    def test_steps_after_one_that_rounding_has_changed_are_not_compared(self):
        work = unittest.mock.Mock(dtype="bf16")
        work.inputs.sum_length.return_value = 16
        reference = [{"loss": 1.0, "grad_norm": 8.0}, {"loss": 1.0, "grad_norm": 8.0}]
        nudged = [{"loss": 1.0, "grad_norm": 30.0}, {"loss": 1.1, "grad_norm": 8.0}]
        later = ("loss", 2, 9.0, 1.0)
        for first, is_failure in ((("grad_norm", 1, 50.0, 8.0), False), (("grad_norm", 1, 9.0, 8.0), True)):
            with unittest.mock.patch.object(confirm, "nudged", return_value=[nudged, nudged]), \
                    unittest.mock.patch.object(runs, "metrics_of", side_effect=lambda rows: rows):
                if is_failure:
                    with self.assertRaises(program.Failure):
                        comparison.judge_run(work, reference, ([first, later], None), confirm.ROUNDS[0], "bf16")
                else:
                    comparison.judge_run(work, reference, ([first, later], None), confirm.ROUNDS[0], "bf16")

    def test_run_that_overflows_is_no_refusal_of_a_forecast(self):
        for refusal, is_failure in ((program.OVERFLOWED, False), ("tp=9", True)):
            work = unittest.mock.Mock(**{"inputs.model_path": "model"})
            work.case = {"kind": "plan", "model": {}, "data": {}, "math": {}, "layout": {}, "other": {"form": "layout"}}
            work.train.side_effect = program.Refused(refusal)
            with unittest.mock.patch.object(forecasts, "expect_sound") as sound:
                if is_failure:
                    with self.assertRaises(program.Failure):
                        forecasts.plan(work)
                else:
                    forecasts.plan(work)
            self.assertEqual(sound.called, not is_failure)

    def test_wrong_loss_is_found_where_the_right_one_is_nearly_0(self):
        work = unittest.mock.Mock(dtype="fp32")
        work.inputs.sum_length.return_value = 16
        rows = [[{"loss": 1e-9 * i, "grad_norm": 1.0}] for i in range(5)]
        with unittest.mock.patch.object(confirm, "nudged", return_value=rows[1:]), \
                unittest.mock.patch.object(runs, "metrics_of", side_effect=lambda each: each), \
                self.assertRaises(program.Failure):
            comparison.judge_run(work, rows[0], ([("loss", 1, 5.0, 0.0)], None), confirm.ROUNDS[0], "fp32")

    def test_early_stop_that_nudges_move_is_decided_by_rounding(self):
        work = unittest.mock.Mock(dtype="fp32")
        work.inputs.sum_length.return_value = 16
        for lengths, is_failure in (([2, 2, 2, 2], True), ([2, 2, 3, 2], False)):
            with unittest.mock.patch.object(confirm, "nudged", return_value=lengths), \
                    unittest.mock.patch.object(runs, "metrics_of", side_effect=range):
                if is_failure:
                    with self.assertRaises(program.Failure):
                        comparison.judge_stop(work, [{}, {}], confirm.ROUNDS[0], "fp32")
                else:
                    comparison.judge_stop(work, [{}, {}], confirm.ROUNDS[0], "fp32")


if __name__ == "__main__":
    unittest.main()
