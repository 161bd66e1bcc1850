"""Tensor files in the safetensors format, without numpy: an 8-byte length, a JSON header, then the bytes."""
import array
import json
import struct

NAMES = {"fp64": "F64", "fp32": "F32", "bf16": "BF16", "fp16": "F16"}


def to_bf16(values):
    """Bits of the nearest bf16 numbers, ties to even."""
    bits = array.array("I", array.array("f", values).tobytes())
    return array.array("H", [(b + 0x7FFF + ((b >> 16) & 1)) >> 16 for b in bits])


def encoded(values, dtype):
    """The bytes of a list of floats in a dtype of NAMES."""
    if dtype == "bf16":
        return to_bf16(values).tobytes()
    if dtype == "fp16":
        return struct.pack(f"<{len(values)}e", *values)
    return array.array("d" if dtype == "fp64" else "f", values).tobytes()


def decoded(data, name):
    """A list of numbers from the bytes of a tensor; `name` is the dtype in the header."""
    if name == "BF16":
        wide = array.array("I", [b << 16 for b in array.array("H", data)])
        return array.array("f", wide.tobytes())
    if name == "F16":
        return struct.unpack(f"<{len(data) // 2}e", data)
    codes = {"F32": "f", "F64": "d", "I64": "q", "I32": "i", "U8": "B", "BOOL": "B"}
    return array.array(codes[name], data)


def write(path, tensors, metadata=None):
    """`tensors`: name to (shape, dtype, bytes)."""
    header, at = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (shape, dtype, data) in tensors.items():
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def read(path):
    """Name to (shape, list of numbers)."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            out[name] = (entry["shape"], decoded(data[begin:end], entry["dtype"]))
    return out
