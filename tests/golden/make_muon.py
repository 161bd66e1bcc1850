"""Writes muon.safetensors: torch.optim.Muon (adjust_lr_fn "match_rms_adamw") on matrices of numpy's generator.

usage: make_muon.py [--check]

For NAME, a matrix: NAME.start, NAME.gradients [3, R, C], NAME.end after three steps with the learning rates RATES, and
NAME.momentum. All in float64: torch.Tensor.bfloat16 is replaced, so that the iteration runs in the gradient's type.
"""

import numpy as np
import torch

import stored

SHAPES = {"tall": (7, 5), "wide": (4, 9), "square": (6, 6)}
RATES = (0.01, 0.02, 0.03)
WEIGHT_DECAY = 0.3


def run(start, gradients):
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.Muon([weight], weight_decay=WEIGHT_DECAY, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for rate, gradient in zip(RATES, gradients):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    return weight.detach().numpy(), optimizer.state[weight]["momentum_buffer"].numpy()


def main():
    torch.Tensor.bfloat16 = lambda self: self.clone()
    random = np.random.default_rng(7)
    out = {}
    for name, shape in SHAPES.items():
        start, gradients = random.standard_normal(shape), random.standard_normal((3, *shape))
        end, momentum = run(start, gradients)
        out |= {f"{name}.start": start, f"{name}.gradients": gradients}
        out |= {f"{name}.end": end, f"{name}.momentum": momentum}
    stored.put_tensors(stored.HERE / "muon.safetensors", out, 1e-12)


main()
