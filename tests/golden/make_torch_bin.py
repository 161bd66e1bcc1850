"""Writes format/pytorch_model.bin by torch.save and format/model.safetensors: the same small GPT-2; and by torch.save
format/values.pt: many kinds of values. Checks that torch.load reads format/nested.pt, which TorchWriter wrote, as the values that
it was given (cleave/format/torch_bin_test.cc).

usage: make_torch_bin.py [--check]
"""

import zipfile

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import make_models
import stored

FOLDER = stored.HERE / "format"
CONFIG = make_models.GPT2 | {"vocab_size": 16, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}


def values():
    """A state_dict with statistics, the state of an optimizer, and views, shapes and large numbers."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    p = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "p": p, "turned": p.detach().t(),
            "size": p.shape, "big": 2**62, "minus": -(2**33)}


def check_values():
    path = FOLDER / "values.pt"
    if not stored.CHECKS:
        torch.save(values(), path)
    have = torch.load(path, weights_only=True)
    if have.keys() != values().keys() or not torch.equal(have["turned"], values()["turned"]):
        stored.report(path, "has other values than the script makes")


def check_nested():
    path = FOLDER / "nested.pt"
    weight = torch.frombuffer(bytearray(range(1, 13)), dtype=torch.bfloat16).reshape(2, 3)
    for mmap in (False, True):
        have = torch.load(path, weights_only=True, mmap=mmap)
        same = torch.equal(have["model"]["w"], weight) and have["model"]["w"].dtype == torch.bfloat16
        same &= have["model"]["tied"].data_ptr() == have["model"]["w"].data_ptr()
        same &= have["epoch"] == 3 and have["note"] == '\u00fc "x"\n'
        same &= have["list"] == [None, True, -5, 1 << 40, 0.1] and have["betas"] == (0.9, 0.999)
        same &= have["state"][0].item() == 77 and have["state"][-1] == {}
        if not same or zipfile.ZipFile(path).testzip() is not None:
            stored.report(path, "is not what TorchWriter was given")


def main():
    check_nested()
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
    check_values()


main()
