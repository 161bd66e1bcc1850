#!/usr/bin/env python3
"""Prints the registers of each CUDA kernel on each architecture from ptxas's log, and fails if one has a stack frame, spills
registers or uses more than 64: four blocks of 256 threads fit into an SM's 65,536 registers.

usage: cuda_registers.py LOG
"""
import collections
import pathlib
import re
import sys

MOST = 64
ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
KERNEL = re.compile(r"\d([A-Z][A-Za-z]*Kernel)(?:I([ft])E)?")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
TYPES = {"f": " fp32", "t": " bf16", None: ""}


def read(text):
    """{kernel: {architecture: registers}}, and the faults that were found."""
    table, faults, kernel, arch = collections.defaultdict(dict), [], "", ""
    for line in text.splitlines():
        if entry := ENTRY.search(line):
            name = KERNEL.search(entry.group(1))
            kernel = name.group(1) + TYPES[name.group(2)] if name else entry.group(1)
            arch = entry.group(2)
        elif frame := FRAME.search(line):
            if any(int(number) for number in frame.groups()):
                faults.append(f"{kernel} on {arch}: {frame.group()}")
        elif used := USED.search(line):
            table[kernel][arch] = int(used.group(1))
            if table[kernel][arch] > MOST:
                faults.append(f"{kernel} on {arch}: {used.group(1)} registers; at most {MOST}")
    return table, faults


def main():
    if len(sys.argv) != 2:
        print(__doc__.strip())
        return 2
    log = pathlib.Path(sys.argv[1])
    if not log.exists():
        print(f"skipped: {log} does not exist; this build has no CUDA (nvcc, libtorch's CUDA libraries or NCCL not found)")
        return 77
    table, faults = read(log.read_text())
    if not table:
        faults.append(f"{log} names no kernel")
    archs = sorted({arch for row in table.values() for arch in row})
    print(f"{'kernel':32}" + "".join(f"{arch:>8}" for arch in archs))
    for kernel, row in sorted(table.items()):
        print(f"{kernel:32}" + "".join(f"{row.get(arch, 0):8}" for arch in archs))
        faults += [f"{kernel} was not compiled for {arch}" for arch in archs if arch not in row]
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
