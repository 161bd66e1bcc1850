"""Checks the tensors of rounded model files against the weights that they were made from.

Each bound is on one element, from the definition of the format: half a step of its group, and the rounding of what the step is
computed from. A group lies within a row, so the largest magnitude or the span of a row bounds that of its groups.
"""
import math

import tolerance
from program import Failure

GROUP = 32  # elements that share a scale, in int4 and Q8_0
SUPER = 256  # elements of a block of Q4_K and Q6_K
FP16_TINY = 2.0**-24


def rows_of(shape, values):
    width = shape[-1] if shape else 1
    return [values[at:at + width] for at in range(0, len(values), width)]


def transposed(shape, values):
    rows, columns = shape
    return [columns, rows], [values[r * columns + c] for c in range(columns) for r in range(rows)]


def decoded_int4(shape, codes, scales, mins):
    """The numbers [out, in] of a matrix whose codes are [out, in / 2]: byte i of a group has elements i and i + 16."""
    values = []
    for group in range(shape[0] * shape[1] // (GROUP // 2)):
        block = codes[16 * group:16 * group + 16]
        numbers = [b & 15 for b in block] + [b >> 4 for b in block]
        scale = scales[group]
        values += [q * scale - mins[group] if mins else (q - 8) * scale for q in numbers]
    return [shape[0], 2 * shape[1]], values


def check_int4(original, stored):
    """Raises Failure unless each element of each 4-bit matrix is within a step of its weight. Returns the number of matrices.

    A step is at most the span of its row, which contains 0, divided by 15 (with minimums) or 8. Half of it is the rounding; the
    numbers end at 15 and 0, so that without minimums an element of the other sign may be off by a whole step. The scale and
    the minimum are rounded to fp16, 15 times a relative 2^-11 of a step and 2^-11 of the minimum: less than another 1/8 step.
    """
    count = 0
    for name, (shape, values) in original.items():
        for end, turns in ((".int4", False), (".int4_t", True)):
            if name + end not in stored:
                continue
            count += 1
            mins = stored.get(name + ".int4_mins", (None, None))[1]
            want_shape, want = transposed(shape, values) if turns else (shape, values)
            got_shape, got = decoded_int4(*stored[name + end], stored[name + ".int4_scales"][1], mins)
            if list(got_shape) != list(want_shape):
                raise Failure("int4", f"{name} has the shape {got_shape}, expected {want_shape}")
            for a, b in zip(rows_of(got_shape, got), rows_of(want_shape, want)):
                span = max(max(b), 0) - min(min(b), 0) if mins else 2 * max(map(abs, b))
                step = span / 15 if mins else span / 16
                expect_close(name, a, b, (1.125 if not mins else 0.625) * step + 16 * FP16_TINY)
    return count


def expect_close(name, got, want, bound):
    off = max(abs(x - y) for x, y in zip(got, want))
    if not off <= bound:
        raise Failure("tensors", f"{name} is off by {off:.3g} (bound {bound:.3g})")


def gguf_bound(dtype, row, file_dtype):
    """Bound on the error of an element of this row of a matrix whose weights are numbers of `file_dtype`."""
    largest = max(map(abs, row), default=0)
    if dtype == file_dtype or (dtype == "fp32" and file_dtype != "fp64"):
        return 0.0
    if dtype in tolerance.UNIT:
        return tolerance.UNIT[dtype] * largest + (FP16_TINY if dtype == "fp16" else 0)
    if len(row) % GROUP:
        return tolerance.UNIT["fp16"] * largest + FP16_TINY
    # Q8_0: 127 steps to the largest, rounded to nearest; the step is rounded to fp16.
    eight_bits = largest * (0.5 / 127 + tolerance.UNIT["fp16"]) + 128 * FP16_TINY
    if dtype == "q8_0" or len(row) % SUPER:
        return eight_bits
    # Q4_K has 15 steps, whose length and start are rounded to 63 parts of those of the largest group. The writer minimises a
    # weighted sum of squares, so single elements may be off by more than half a step. Wrong codes are off by the span.
    return (max(max(row), 0) - min(min(row), 0)) / 8 + 128 * FP16_TINY


def check_gguf(original, back, dtype, file_dtype):
    """Raises Failure unless the tensors that were read back from a GGUF file are the original ones within its rounding."""
    if set(original) != set(back):
        raise Failure("tensors", f"only on one side: {sorted(set(original) ^ set(back))[:4]}")
    for name, (shape, values) in original.items():
        got_shape, got = back[name]
        if math.prod(shape) != math.prod(got_shape) or list(shape) != list(got_shape):
            raise Failure("tensors", f"{name} has the shape {got_shape}, expected {shape}")
        plain = dtype or ("fp32" if file_dtype == "fp64" else file_dtype)
        # Rows of GPT-2's matrices [in, out] are columns in the file.
        turns = plain not in tolerance.UNIT and len(shape) == 2 and is_turned(name)
        (_, got), (shape, values) = (transposed(shape, v) if turns else (shape, v) for v in (got, values))
        for a, b in zip(rows_of(shape, got), rows_of(shape, values)):
            expect_close(name, a, b, gguf_bound(plain, b, file_dtype))


def is_turned(name):
    return ".c_attn." in name or ".c_proj." in name or ".c_fc." in name
