#!/usr/bin/env python3
"""Trains adapters of a model folder with PEFT and PyTorch, and prints one line of JSON.

usage: peft_train.py --model FOLDER --data ROWS.jsonl [--rank N] [--variant lora|dora|dropout|nf4] [--dtype fp32|bf16] ...

Frozen weights are in --dtype, adapters in fp32; bf16 computes under autocast. AdamW, norms clipped to 1, the rows in their
order. Needs torch, transformers and peft; nf4 needs bitsandbytes and accelerate too.
"""
import argparse
import json
import os
import resource
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def parse_options():
    parser = argparse.ArgumentParser(description="times LoRA training with PEFT")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="JSONL rows with input_ids, all of one length")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--variant", default="lora", choices=["lora", "dora", "dropout", "nf4"])
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args()


def make_model(options):
    import peft
    import torch
    import transformers

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
    loading = {}
    if options.variant == "nf4":
        loading = {"device_map": "cpu", "quantization_config": transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)}
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, **loading)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear",
                             use_dora=options.variant == "dora", lora_dropout=0.1 if options.variant == "dropout" else 0.0)
    return peft.get_peft_model(model, config).train()


def batches(options):
    import torch

    with open(options.data, encoding="utf-8") as file:
        rows = [json.loads(line)["input_ids"] for line in file]
    for number in range(options.warmup + options.steps):
        first = number * options.batch_size
        yield torch.tensor(rows[first:first + options.batch_size])


def train(options):
    """The seconds of each timed step, all losses, and the tokens of a step."""
    import torch

    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    model = make_model(options)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds, losses, tokens = [], [], 0
    for number, ids in enumerate(batches(options)):
        start = time.monotonic()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
        tokens = ids.numel()
        if number >= options.warmup:
            seconds.append(time.monotonic() - start)
    return seconds, losses, tokens


def main():
    options = parse_options()
    seconds, losses, tokens = train(options)
    print(json.dumps({"tokens_per_s": tokens / statistics.median(seconds),
                      "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                      "first_loss": losses[0], "last_loss": losses[-1]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
