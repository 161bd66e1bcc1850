"""Writes format/pytorch_model.bin by torch.save and format/model.safetensors: the same small GPT-2.

usage: make_torch_bin.py [--check]
"""

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import make_models
import stored

FOLDER = stored.HERE / "format"
CONFIG = make_models.GPT2 | {"vocab_size": 16, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}


def main():
    model = make_models.load({"seed": 5, "config": CONFIG, "tensors": make_models.build(CONFIG)})
    state = model.state_dict()  # lm_head.weight is tied to transformer.wte.weight
    once = dict(model.named_parameters())
    once = {name: value.detach().clone() for name, value in once.items()}
    if not stored.CHECKS:
        FOLDER.mkdir(exist_ok=True)
        torch.save(dict(state), FOLDER / "pytorch_model.bin")
        save_file(once, FOLDER / "model.safetensors", {"format": "pt"})
    for path, want, have in (
        ("pytorch_model.bin", state, torch.load(FOLDER / "pytorch_model.bin", weights_only=True)),
        ("model.safetensors", once, load_file(FOLDER / "model.safetensors")),
    ):
        same = want.keys() == have.keys() and all(np.array_equal(want[n].numpy(), have[n].numpy()) for n in want)
        if not same:
            stored.report(FOLDER / path, "has other tensors than the script makes")


main()
