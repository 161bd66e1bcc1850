"""Writes oslo/: a small GPT-2 as OSLO 2 saved it on two ranks, with torch.save, and transformers' logits.

usage: make_oslo.py [--check]
"""

import json

import numpy as np
import torch

import counter
import make_models
import stored

FOLDER = stored.HERE / "oslo"
CONFIG = make_models.GPT2 | {"vocab_size": 17, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 8}
SEED = 6


def rank_part(state, rank):
    """Fused columns in thirds, the embedding and the tied head in chunks of rows, row biases and causal masks whole."""
    part = {}
    for name, value in state.items():
        if ".attn.c_attn." in name:
            chunks = value.chunk(6, -1)
            value = torch.cat([chunks[i] for i in (rank, 2 + rank, 4 + rank)], -1)
        elif ".mlp.c_fc." in name:
            value = value.chunk(2, -1)[rank]
        elif name.endswith(".c_proj.weight") or name.split(".")[-2] in ("wte", "lm_head"):
            value = value.chunk(2, 0)[rank]
        part[name] = value.clone()
    for layer in range(CONFIG["n_layer"]):
        part[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 8, 8).tril().bool()
        part[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return part


def main():
    model = make_models.load({"seed": SEED, "config": CONFIG, "tensors": make_models.build(CONFIG)})
    ids = counter.integers(SEED, "oslo", (2, 7), 0, CONFIG["vocab_size"])
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)).logits.numpy()
    FOLDER.mkdir(exist_ok=True)
    stored.put_text(FOLDER / "config.json", json.dumps(CONFIG, indent=2) + "\n")
    stored.put_tensors(FOLDER / "answers.safetensors", {"input_ids": ids.astype(np.int32), "logits": logits}, 1e-5)
    for rank in range(2):
        path = FOLDER / f"pytorch_model_tp_{rank}_pp_0.bin"
        want = rank_part(model.state_dict(), rank)
        if not stored.CHECKS:
            torch.save(want, path)
        have = torch.load(path, weights_only=True)
        if want.keys() != have.keys() or not all(torch.equal(want[n], have[n]) for n in want):
            stored.report(path, "has other tensors than the script makes")


main()
