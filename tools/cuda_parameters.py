#!/usr/bin/env python3
"""Fails if a CUDA kernel reads beyond its parameters, which happens where nvcc lays out a struct in two ways: nvcc 13 does for
an array of structs with a [[no_unique_address]] member. On a GPU such a kernel reads other memory, and may never end.

usage: cuda_parameters.py PTX
"""
import pathlib
import re
import sys

ENTRY = re.compile(r"\.entry (\S+?)\((.*?)\n\}", re.DOTALL)
KERNEL = re.compile(r"\d([A-Z][A-Za-z]*Kernel)")
PARAMETER = re.compile(r"\.param .*?(\w+_param_\d+)(?:\[(\d+)\])?\s*(?:,|\n)")
ADDRESS = re.compile(r"mov\.b64\s+(%rd\d+), (\w+_param_\d+)(?:\+(\d+))?;")
SUM = re.compile(r"add\.s64\s+(%rd\d+), (%rd\d+), (%rd\d+|-?\d+);")
LOAD = re.compile(r"ld\.param\.\S+\s+[^\[]*\[(%rd\d+|\w+_param_\d+)(?:\+(-?\d+))?\]")


def faults_of(name, text):
    """The reads beyond the end of a parameter. Indices that the kernel computes count as 0."""
    sizes = {parameter: int(size or 8) for parameter, size in PARAMETER.findall(text)}
    places = {parameter: (parameter, 0) for parameter in sizes}  # parameter and offset, also by register
    faults = []
    for line in text.splitlines():
        if address := ADDRESS.search(line):
            places[address[1]] = (address[2], int(address[3] or 0))
        elif total := SUM.search(line):
            for base, added in ((total[2], total[3]), (total[3], total[2])):
                if base in places:
                    parameter, offset = places[base]
                    places[total[1]] = (parameter, offset + (0 if added.startswith("%") else int(added)))
                    break
        elif (load := LOAD.search(line)) and load[1] in places:
            parameter, offset = places[load[1]]
            offset += int(load[2] or 0)
            if offset >= sizes[parameter]:
                faults.append(f"{name} reads byte {offset} of a parameter of {sizes[parameter]} bytes: {line.strip()}")
    return faults


def main():
    if len(sys.argv) != 2:
        print(__doc__.strip())
        return 2
    path = pathlib.Path(sys.argv[1])
    if not path.exists():
        print(f"skipped: {path} does not exist; this build has no CUDA kernels")
        return 77
    entries = ENTRY.findall(path.read_text())
    if not entries:
        print(f"{path} has no kernels")
        return 1
    faults = []
    for symbol, body in entries:
        name = KERNEL.search(symbol)
        faults += faults_of(name[1] if name else symbol, body)
    print("\n".join(faults) if faults else f"{len(entries)} kernels read only their parameters")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
