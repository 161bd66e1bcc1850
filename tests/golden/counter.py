"""Counter-based random numbers: the same bits as cleave/base/philox.cc, in plain numpy.

Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import numpy as np

MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = 0x9E3779B9, 0xBB67AE85
LOW = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)


def philox(key, blocks, high=0):
    """uint64 [len(blocks), 4] of 32-bit numbers: one row for each counter value."""
    c = [blocks & LOW, blocks >> SHIFT, np.full_like(blocks, high & 0xFFFFFFFF), np.full_like(blocks, high >> 32)]
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p = [MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]]
        c = [(p[1] >> SHIFT) ^ c[1] ^ np.uint64(k[0]), p[1] & LOW, (p[0] >> SHIFT) ^ c[3] ^ np.uint64(k[1]), p[0] & LOW]
        k = [(k[i] + WEYL[i]) & 0xFFFFFFFF for i in range(2)]
    return np.stack(c, axis=1)


def stream_key(seed, stream):
    """cleave::stream_key: FNV-1a of the name, spread by one Philox block."""
    value = 0xCBF29CE484222325
    for byte in stream.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    block = philox(seed, np.array([value], dtype=np.uint64))[0]
    return (int(block[1]) << 32) | int(block[0])


def uniform(seed, stream, count):
    """cleave::fill_uniform at step 0: float32 multiples of 2^-24 in [0, 1)."""
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    bits = philox(stream_key(seed, stream), blocks).reshape(-1)[:count]
    return (bits >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)


def integers(seed, stream, shape, low, high):
    """int64 in [low, high)."""
    u = uniform(seed, stream, int(np.prod(shape))).astype(np.float64)
    return (low + np.floor(u * (high - low)).astype(np.int64)).reshape(shape)


def weights(seed, name, shape, scale, offset):
    """A golden model's tensor: offset + scale * (u - 1/2), each operation rounded to float32 once."""
    u = uniform(seed, name, int(np.prod(shape)))
    return ((u - np.float32(0.5)) * np.float32(scale) + np.float32(offset)).reshape(shape)


def directions(count):
    """The vector onto which rows are projected: float64 of 0.5 <= |v| < 1.5, divided by sqrt(count).

    No entry is small and no two are equal, so that an error or an exchange of entries shows.
    """
    x = 2.0 * uniform(0, "projection", count).astype(np.float64) - 1.0
    return np.where(x < 0, x - 0.5, x + 0.5) / np.sqrt(float(count))
