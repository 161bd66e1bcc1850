#!/usr/bin/env python3
"""Times an all-reduce (fp32, sum, in place) between processes of this host in the same way as `cleave bench collectives`.

usage: all_reduce.py --engine gloo|vllm|deepspeed [--ranks N] [--bytes LIST] [--seconds S] [--one-core]

Prints a line of JSON for each size. A sample is the mean of as many calls as take 20 us, including the call from Python.
gloo is c10d's; vllm and deepspeed are the shared-memory kernels of these packages. DeepSpeed's is compiled on first use.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import rank_processes

SAMPLE_S = 20e-6


def parse_options():
    parser = argparse.ArgumentParser(description="times an all-reduce")
    parser.add_argument("--engine", required=True, choices=["gloo", "vllm", "deepspeed"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bytes", default="1024,16384,262144,4194304,67108864")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per size")
    parser.add_argument("--one-core", action="store_true", help="bind all ranks to one core")
    return parser.parse_args()


def vllm_call(rank, num_ranks):
    """vLLM's shared-memory kernel, loaded from its extension only: the build for this CPU, chosen as in vLLM."""
    import importlib.util

    import torch
    import torch.distributed as dist

    build = "_C_AVX2"
    if torch.cpu._is_avx512_supported():
        build = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"
    folder = pathlib.Path(importlib.util.find_spec("vllm").origin).parent
    torch.ops.load_library(str(folder / f"{build}.abi3.so"))
    name = f"bench-{os.environ['MASTER_PORT']}"
    handle = torch.ops._C.init_shm_manager(name, num_ranks, rank, 1)
    dist.barrier()
    torch.ops._C.join_shm_manager(handle, name)
    dist.barrier()
    return lambda data: torch.ops._C.shm_allreduce(handle, data)


def deepspeed_call(rank, num_ranks):
    """DeepSpeed's shared-memory kernel, for up to 16 ranks on one host."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import torch
    import torch.distributed as dist
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    # The first rank compiles it; the others reuse the result.
    for turn in range(num_ranks):
        if turn == rank:
            module = ShareMemCommBuilder().load(verbose=False)
        dist.barrier()
    module.initialize(num_ranks, rank)
    dist.barrier()
    return torch.ops.deepspeed.inference_all_reduce_


def median_us(call, data, seconds, agree):
    """Microseconds per call. `agree` broadcasts rank 0's number, so that all ranks make the same calls."""
    def mean_of(calls):
        start = time.perf_counter()
        for _ in range(calls):
            call(data)
        return (time.perf_counter() - start) / calls

    mean_of(2)
    one = mean_of(agree(int(min(max(1e-3 / mean_of(5), 1), 1000))))
    calls = agree(max(1, int(SAMPLE_S / one)))
    samples = agree(int(min(max(seconds / max(one, SAMPLE_S), 5), 5000)))
    return statistics.median(mean_of(calls) for _ in range(samples)) * 1e6


def run_rank(options, rank):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    calls = {"gloo": lambda *_: dist.all_reduce, "vllm": vllm_call, "deepspeed": deepspeed_call}
    call = calls[options.engine](rank, options.ranks)

    def agree(number):
        tensor = torch.tensor([number])
        dist.broadcast(tensor, 0)
        return int(tensor.item())

    probe = torch.full((1024,), float(rank + 1))
    call(probe)
    wanted = sum(range(1, options.ranks + 1))
    if not bool((probe == wanted).all()):
        raise SystemExit(f"{options.engine} added to {probe[0].item()}; expected {wanted}")
    for size in (int(part) for part in options.bytes.split(",")):
        us = median_us(call, torch.zeros(size // 4), options.seconds, agree)
        if rank == 0:
            print(json.dumps({"op": "all-reduce", "bytes": size, "median_us": us, "engine": options.engine}), flush=True)
    dist.barrier()
    rank_processes.leave()


def main():
    options = parse_options()
    if rank_processes.rank() is not None:
        run_rank(options, rank_processes.rank())
    if options.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return rank_processes.start(options.ranks, 1, bind=not options.one_core)


if __name__ == "__main__":
    sys.exit(main())
