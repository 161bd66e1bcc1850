"""Decides whether rounding explains a difference, by the effect of small changes of the weights on the reference.

tolerance.py does not know by how much a model amplifies an error. So each weight of the reference is changed by the unit
roundoff with a random sign ("nudged"); four such references show how much the numbers change. Rounding during the computation
changes them by as much, times a factor that tolerance.amplified derives. A larger difference is a fault.

That holds where the numbers change in proportion. But Adam's first step takes the sign of a gradient, however small it is. So
in fp32 and fp64, whose factor is large, the last round nudges by the unit roundoff times that factor, and twice what its
references change bounds the difference: one correct run in 17 differs by more than the largest of sixteen.
"""
import math
import statistics
from dataclasses import dataclass

import tolerance
from program import Failure, Refused


@dataclass(frozen=True)
class Round:
    """The nudges of one judgement."""
    numbers: range
    is_amplified: bool = False

    def size(self, unit, dtype, sum_length):
        """The relative change of each weight, for a unit roundoff."""
        return tolerance.amplified(unit, dtype, sum_length) if self.is_amplified else unit

    def explains(self, distance, responses, dtype, sum_length, size=math.inf):
        """Whether rounding explains a difference of `distance`, if nudges change the number, of `size`, by `responses`.

        Where most nudges change a number by more than half its size, it is random, and a few nudges do not show its largest
        values; any difference is explained.

        The response of a nudged fp16 run is NaN, and bounds nothing, where scaled gradients overflow and it has no number, or
        has skipped other steps than the reference. Without two other responses, rounding decides whether there is a number,
        so any number is explained; a side without a number (an infinite distance) is not.
        """
        finite = [r for r in responses if math.isfinite(r)]
        if len(finite) < 2:
            return dtype == "fp16" and math.isfinite(distance) and any(math.isnan(r) for r in responses)
        if len(finite) > 3 and statistics.median(finite) > size / 2:
            return math.isfinite(distance)
        return distance <= (2 * max(finite) if self.is_amplified else tolerance.amplified(max(finite), dtype, sum_length))


# Four references are enough for most cases. Some models have a few very different outcomes (a norm of nearly equal numbers), so
# a difference that four do not explain is judged again with others.
ROUNDS = (Round(range(1, 5)), Round(range(5, 17)), Round(range(17, 33), is_amplified=True))


def rounds_of(dtype):
    """The rounds that can explain differences in a dtype."""
    return ROUNDS if dtype in ("fp32", "fp64") else ROUNDS[:-1]


def judged(judge, rounds=ROUNDS):
    """Calls `judge(a Round)` until one raises no Failure; raises the last one."""
    for each in rounds:
        try:
            return judge(each)
        except Failure:
            if each is rounds[-1]:
                raise


def nudged(work, size, numbers, run):
    """Results of `run(model path, number)` for the nudged models of a case; [] if one of them fails."""
    try:
        return [run(work.inputs.nudged(number, size, work.dtype, work.initial), number) for number in numbers]
    except (Refused, Failure):  # a reference that nearly overflows proves nothing
        return []
