"""Decides whether rounding explains a difference, by what small changes of the weights do to the reference.

tolerance.py does not know by how much a model amplifies an error. So each weight of the reference is changed once by the unit
of rounding, with a random sign; four such references say how much the numbers move. Rounding along the way moves them by as
much, times a factor that tolerance.amplified derives. What is further off is a fault.
"""
import math
import os

import tolerance
from program import Failure, Refused

NUM_NUDGES = 4


def nudged(inputs, unit, dtype, run):
    """What `run(model path, number)` gives, in `dtype`, for the nudged models; nothing where the weights are not ours."""
    out = []
    for number in range(1, NUM_NUDGES + 1):
        path = inputs.nudged(number, unit, dtype)
        if path is None:
            return []
        try:
            out.append(run(path, number))
        except (Failure, Refused):  # a reference on the edge of what is finite says nothing
            return []
    return out


def is_explained(distance, responses, dtype, sum_length):
    """Whether a number may be `distance` off, where nudges moved it by `responses`."""
    if not responses or any(math.isnan(r) for r in responses):
        return False
    return distance <= tolerance.amplified(max(responses), dtype, sum_length)


def folder_of(inputs, number):
    return os.path.join(inputs.folder, f"nudged-{number}")
