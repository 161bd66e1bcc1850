"""Decides whether rounding explains a difference, by the effect of small changes of the weights on the reference.

tolerance.py does not know by how much a model amplifies an error. So each weight of the reference is changed by the unit
roundoff with a random sign ("nudged"); four such references show how much the numbers change. Rounding during the computation
changes them by as much, times a factor that tolerance.amplified derives. A larger difference is a fault.
"""
import math

import tolerance
from program import Failure, Refused

# Four references are enough for most cases. Some models have a few very different outcomes (a norm of nearly equal numbers), so
# a difference that four do not explain is judged again with twelve others.
ROUNDS = (range(1, 5), range(5, 17))


def judged(judge):
    """Calls `judge(numbers of nudges)` until one round raises no Failure; raises the last one."""
    for numbers in ROUNDS:
        try:
            return judge(numbers)
        except Failure:
            if numbers is ROUNDS[-1]:
                raise


def nudged(work, unit, numbers, run):
    """Results of `run(model path, number)` for the nudged models of a case; [] if one of them fails."""
    try:
        return [run(work.inputs.nudged(number, unit, work.dtype, work.initial), number) for number in numbers]
    except (Refused, Failure):  # a reference that nearly overflows proves nothing
        return []


def is_explained(distance, responses, dtype, sum_length):
    """Whether rounding explains a difference of `distance`, if nudges change the number by `responses`.

    The response of a nudged fp16 run is NaN, and bounds nothing, where scaled gradients overflow and it has no number, or has
    skipped other steps than the reference. Without two other responses, rounding decides whether there is a number, so any
    number is explained; a side without a number (an infinite distance) is not.
    """
    finite = [r for r in responses if math.isfinite(r)]
    if len(finite) < 2:
        return dtype == "fp16" and math.isfinite(distance) and any(math.isnan(r) for r in responses)
    return distance <= tolerance.amplified(max(finite), dtype, sum_length)
