#!/usr/bin/env python3
"""Times training steps of PyTorch in the same way as `cleave bench train`; prints one line of JSON.

usage: pytorch_train.py --shape NAME --dtype fp32|bf16 --mode eager|compiled|tp [--tp N] [--threads N] [...]

A step: loss, gradients, clipping to a norm of 1, AdamW (fused). bf16 is autocast over fp32 weights. Mode tp is DTensor's
tensor parallelism on Gloo, one process per rank, each with its share of the threads: attention and feed-forward sharded by
columns and rows, embedding and head by vocabulary, the loss from the sharded logits.
"""
import argparse
import contextlib
import json
import os
import resource
import statistics
import sys
import time

import rank_processes
import shapes


def parse_options():
    parser = argparse.ArgumentParser(description="times PyTorch's training steps")
    parser.add_argument("--shape", required=True, choices=["llama-135m", "gpt2-124m", "bert-base"])
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--mode", default="eager", choices=["eager", "compiled", "tp"])
    parser.add_argument("--tp", type=int, default=2, help="ranks of mode tp")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of all processes together")
    parser.add_argument("--dropout", type=float, default=0.0, help="of hidden states and attention")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    return parser.parse_args()


def random_batch(shape):
    """Token ids, and the id to predict at each position or -100; both [batch, tokens]."""
    import torch

    generator = torch.Generator().manual_seed(1)
    size = (shape.batch_size, shape.seq_len)
    vocab_size = {"llama": 32000, "gpt2": 50257, "bert": 30522}[shape.family]
    ids = torch.randint(0, vocab_size, size, generator=generator)
    if shape.family == "bert":
        return ids, ids.masked_fill(torch.rand(size, generator=generator) > 0.15, -100)
    return ids, torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)


class Trainer:
    """One rank's model, optimizer and batch. `mesh`: the tensor-parallel ranks, or None."""

    def __init__(self, options, mesh=None):
        import torch

        self.options = options
        self.shape = shapes.SHAPES[options.shape]
        self.ids, self.labels = random_batch(self.shape)
        self.model = shapes.make_model(options.shape, options.dropout).train()
        if mesh is not None:
            import tensor_parallel

            tensor_parallel.split(self.model, self.shape.family, mesh)
        # DTensors and plain tensors cannot share a fused call.
        split = [p for p in self.model.parameters() if hasattr(p, "placements")]
        whole = [p for p in self.model.parameters() if not hasattr(p, "placements")]
        self.groups = [group for group in (split, whole) if group]
        self.optimizer = torch.optim.AdamW([{"params": group} for group in self.groups], lr=1e-4, weight_decay=0.1,
                                           fused=True)
        self.is_split = mesh is not None
        self.forward = torch.compile(self.loss) if options.mode == "compiled" else self.loss

    def loss(self):
        import torch

        use_cache = {} if self.shape.family == "bert" else {"use_cache": False}
        logits = self.model(input_ids=self.ids, **use_cache).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), self.labels.flatten())

    def clip(self):
        """Clips the gradients of both kinds of tensors to a norm of at most 1."""
        import torch

        norms = [torch.nn.utils.get_total_norm([p.grad for p in group]) for group in self.groups]
        norms = [norm.full_tensor() if hasattr(norm, "placements") else norm for norm in norms]
        total = torch.linalg.vector_norm(torch.stack(norms))
        for group in self.groups:
            torch._foreach_mul_([p.grad for p in group], torch.clamp(1.0 / (total + 1e-6), max=1.0).item())

    def step(self):
        import torch
        from torch.distributed.tensor.parallel import loss_parallel

        self.optimizer.zero_grad()
        with loss_parallel() if self.is_split else contextlib.nullcontext():
            with torch.autocast("cpu", torch.bfloat16, enabled=self.options.dtype == "bf16"):
                loss = self.forward()
            loss.backward()
        self.clip()
        self.optimizer.step()
        return loss

    def times(self):
        """The seconds of each timed step, and the last loss."""
        seconds, loss = [], None
        for number in range(self.options.warmup + self.options.steps):
            start = time.monotonic()
            loss = self.step()
            if number >= self.options.warmup:
                seconds.append(time.monotonic() - start)
        loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        return seconds, loss.item()


def peak_rss_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def print_result(options, seconds, loss, peak_rss):
    import torch

    shape = shapes.SHAPES[options.shape]
    step_s = statistics.median(seconds)
    tokens = shape.batch_size * shape.seq_len
    print(json.dumps({
        "baseline": f"pytorch {options.mode}", "shape": options.shape, "dtype": options.dtype, "tokens": tokens,
        "steps": len(seconds), "step_ms": step_s * 1e3, "step_ms_min": min(seconds) * 1e3,
        "step_ms_max": max(seconds) * 1e3, "tokens_per_s": tokens / step_s, "peak_rss_bytes": peak_rss, "loss": loss,
        "torch": torch.__version__, "threads": torch.get_num_threads()}), flush=True)


def run_alone(options):
    import torch

    torch.set_num_threads(options.threads)
    seconds, loss = Trainer(options).times()
    print_result(options, seconds, loss, peak_rss_bytes())


def run_rank(options, rank):
    """One of the processes of mode tp; rank 0 prints."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(max(1, options.threads // options.tp))
    dist.init_process_group("gloo", rank=rank, world_size=options.tp)
    mesh = init_device_mesh("cpu", (options.tp,), mesh_dim_names=("tp",))
    seconds, loss = Trainer(options, mesh).times()
    peaks = [None] * options.tp
    dist.all_gather_object(peaks, peak_rss_bytes())
    if rank == 0:
        print_result(options, seconds, loss, sum(peaks))
    dist.barrier()
    rank_processes.leave()


def main():
    options = parse_options()
    if options.mode != "tp":
        run_alone(options)
    elif rank_processes.rank() is not None:
        run_rank(options, rank_processes.rank())
    else:
        return rank_processes.start(options.tp, max(1, options.threads // options.tp))
    return 0


if __name__ == "__main__":
    sys.exit(main())
