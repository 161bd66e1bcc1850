"""Writes int4.safetensors: the 4-bit form of a matrix, by numpy.

usage: make_int4.py [--check]

weight [7, 75] in fp32, whose last group has 11 inputs; sym and min: codes [7, 3, 16], scales [7, 3] and for min minimums
[7, 3] in fp16, and values [7, 75], the elements that they stand for, in fp64.
"""

import numpy as np

import stored

GROUP = 32
ROWS, WIDTH = 7, 75


def group_codes(group, with_minimum):
    """Numbers, scale and minimum of 32 elements in fp32."""
    low, high = min(np.float32(0), group.min()), max(np.float32(0), group.max())
    if with_minimum:
        scale, minimum, offset = np.float16((high - low) / np.float32(15)), np.float16(-low), np.float32(0)
    else:
        largest = high if high >= -low else low
        scale, minimum, offset = np.float16(largest / np.float32(-8)), np.float16(0), np.float32(8)
    inverse = np.float32(0) if scale == 0 else np.float32(1) / np.float32(scale)
    numbers = np.rint((group + np.float32(minimum)) * inverse) + offset
    return np.clip(numbers, 0, 15).astype(np.uint8), scale, minimum


def quantized(weight, with_minimum):
    padded = np.zeros((ROWS, -(-WIDTH // GROUP) * GROUP), np.float32)
    padded[:, :WIDTH] = weight
    groups = padded.reshape(ROWS, -1, GROUP)
    results = [[group_codes(group, with_minimum) for group in row] for row in groups]
    numbers = np.array([[r[0] for r in row] for row in results])
    scales = np.array([[r[1] for r in row] for row in results], np.float16)
    mins = np.array([[r[2] for r in row] for row in results], np.float16)
    wide = scales.astype(np.float64)[..., None]
    values = numbers * wide - mins[..., None].astype(np.float64) if with_minimum else (numbers - 8.0) * wide
    codes = numbers[..., :16] | (numbers[..., 16:] << 4)
    out = {"codes": codes.astype(np.uint8), "scales": scales, "values": values.reshape(ROWS, -1)[:, :WIDTH]}
    return out | ({"mins": mins} if with_minimum else {})


def main():
    weight = np.random.default_rng(5).standard_normal((ROWS, WIDTH)).astype(np.float32) * np.float32(0.02)
    weight[1] = np.abs(weight[1])  # minimums of 0
    weight[2, :32] = 0  # a scale of 0
    weight[3] *= np.float32(1e-3)
    out = {"weight": weight}
    for name, with_minimum in (("sym", False), ("min", True)):
        out |= {f"{name}.{part}": value for part, value in quantized(weight, with_minimum).items()}
    stored.put_tensors(stored.HERE / "int4.safetensors", out, 0)


main()
