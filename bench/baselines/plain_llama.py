#!/usr/bin/env python3
"""Times a Llama in plain PyTorch on one device, for comparison with Cleave; needs only torch. Prints one line of JSON.

usage: plain_llama.py --config config.json --work train|decode [--device cuda|cpu] [--compile] [--dtype bf16|fp32]
                      [--batch-size N] [--seq-len N] [--steps N] [--new-tokens N]

train: loss, gradients, clipping to a norm of 1, fused AdamW; bf16 is autocast over fp32 weights. decode: greedy, batch 1, a
cache of fixed size; --compile records CUDA graphs.
"""
import argparse
import json
import pathlib
import statistics
import time

import torch
from torch import nn
from torch.nn import functional


def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, self.heads, self.kv_heads = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim = width // self.heads
        self.norm, self.mlp_norm = (nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, self.kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, c["intermediate_size"], bias=False) for _ in range(2))
        self.down = nn.Linear(c["intermediate_size"], width, bias=False)

    def add_cache(self, tokens):
        """As buffers, so that CUDA graphs may write them."""
        shape, like = (1, self.kv_heads, tokens, self.head_dim), self.q.weight
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(shape, device=like.device, dtype=like.dtype), persistent=False)

    def forward(self, x, cos, sin, position=None, mask=None):
        h, (b, t, _) = self.norm(x), x.shape
        q = rotated(self.q(h).view(b, t, self.heads, -1).transpose(1, 2), cos, sin)
        k = rotated(self.k(h).view(b, t, self.kv_heads, -1).transpose(1, 2), cos, sin)
        v = self.v(h).view(b, t, self.kv_heads, -1).transpose(1, 2)
        if position is not None:
            k = self.keys.index_copy_(2, position, k)
            v = self.values.index_copy_(2, position, v)
        a = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, -1))
        h = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], eps=1e-5)
        self.head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        half = c["hidden_size"] // c["num_attention_heads"] // 2
        angles = torch.outer(torch.arange(c["max_position_embeddings"]), 1e4 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids, position=None, mask=None):
        x = self.embed(ids)
        where = slice(0, ids.shape[1]) if position is None else position
        kind = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        cos, sin = self.cos[where].to(kind), self.sin[where].to(kind)
        for block in self.blocks:
            x = block(x, cos, sin, position, mask)
        return self.head(self.norm(x))


def wait_for(device):
    if device == "cuda":
        torch.cuda.synchronize()


def train(model, c, o):
    ids = torch.randint(0, c["vocab_size"], (o.batch_size, o.seq_len + 1), device=o.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def loss_of():
        return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())

    forward = torch.compile(loss_of) if o.compile else loss_of
    seconds = []
    for number in range(3 + o.steps):
        wait_for(o.device)
        begin = time.monotonic()
        optimizer.zero_grad()
        with torch.autocast(o.device, torch.bfloat16, enabled=o.dtype == "bf16"):
            loss = forward()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        wait_for(o.device)
        if number >= 3:
            seconds.append(time.monotonic() - begin)
    return {"loss": loss.item(), "step_ms": statistics.median(seconds) * 1e3,
            "tokens_per_s": o.batch_size * o.seq_len / statistics.median(seconds)}


@torch.no_grad()
def decode(model, o):
    model = model.to(torch.bfloat16 if o.dtype == "bf16" else torch.float32)
    for block in model.blocks:
        block.add_cache(o.new_tokens + 1)
    positions = torch.arange(o.new_tokens + 1, device=o.device)

    def next_token(ids, position):
        mask = (positions <= position)[None, None, None, :]
        return model(ids, position, mask)[:, -1:].argmax(-1)

    step = torch.compile(next_token, mode="reduce-overhead", fullgraph=True) if o.compile else next_token
    seconds = 0.0
    for _ in range(3):  # the first two compile and record
        ids = torch.ones((1, 1), dtype=torch.long, device=o.device)
        wait_for(o.device)
        begin = time.monotonic()
        for n in range(o.new_tokens):
            ids = step(ids, positions[n:n + 1]).clone()
        wait_for(o.device)
        seconds = time.monotonic() - begin
    return {"tokens_per_s": o.new_tokens / seconds}


def main():
    parser = argparse.ArgumentParser(description="times a Llama in plain PyTorch")
    parser.add_argument("--config", type=pathlib.Path, required=True)
    parser.add_argument("--work", choices=["train", "decode"], required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--compile", action="store_true")
    for flag, default in (("--batch-size", 8), ("--seq-len", 2048), ("--steps", 10), ("--new-tokens", 256)):
        parser.add_argument(flag, type=int, default=default)
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    torch.manual_seed(1)
    model = Llama(config).to(options.device)
    result = train(model, config, options) if options.work == "train" else decode(model, options)
    mode = "compiled" if options.compile else "eager"
    print(json.dumps({"baseline": f"pytorch {mode}", "work": options.work, "dtype": options.dtype,
                      "torch": torch.__version__, **result}))


if __name__ == "__main__":
    main()
