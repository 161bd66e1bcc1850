#!/usr/bin/env python3
"""Times training steps of PyTorch's DistributedDataParallel on Gloo; rank 0 prints one line of JSON.

usage: ddp_train.py --config config.json --batch-size N --seq-len N [--steps N] [--warmup N] [--bf16-hook]

Runs under a launcher's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and OMP_NUM_THREADS. A step: loss, gradients,
clipping to a norm of 1, fused AdamW, in fp32. --batch-size is that of all ranks. --bf16-hook sends gradients in bf16 (bf16_compress_hook).
"""
import argparse
import json
import os
import pathlib
import statistics
import time

import plain_llama
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def parse_options():
    parser = argparse.ArgumentParser(description="times training steps of PyTorch's DDP on Gloo")
    parser.add_argument("--config", type=pathlib.Path, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--bf16-hook", action="store_true")
    return parser.parse_args()


def main():
    options = parse_options()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    config = json.loads(options.config.read_text())
    torch.manual_seed(1)
    model = plain_llama.Llama(config)
    if config.get("tie_word_embeddings"):
        model.head.weight = model.embed.weight
    parallel = nn.parallel.DistributedDataParallel(model)
    if options.bf16_hook:
        parallel.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    size = (options.batch_size // dist.get_world_size(), options.seq_len + 1)
    ids = torch.randint(0, config["vocab_size"], size, generator=torch.Generator().manual_seed(dist.get_rank()))
    seconds = []
    for _ in range(options.warmup + options.steps):
        begin = time.monotonic()
        optimizer.zero_grad()
        logits = parallel(ids[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.monotonic() - begin)
    if dist.get_rank() == 0:
        print(json.dumps({"step_ms": statistics.median(seconds[options.warmup:]) * 1e3, "torch": torch.__version__}),
              flush=True)
    dist.barrier()
    os._exit(0)  # Gloo's threads may outlive their group and would abort the process


if __name__ == "__main__":
    main()
