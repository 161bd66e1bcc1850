"""Writes cross_entropy.safetensors: torch.nn.functional.cross_entropy on logits of counter.py.

usage: make_cross_entropy.py [--check]

NAME is v and the number of classes, with _big for logits around 300 that spread over 140: their exponentials overflow
unless the maximum is subtracted. NAME.SET.lsE.KEY: SET is all, or ignore (some labels are -100); E the label smoothing;
KEY loss_per_token, grad_upstream (of sum(loss_per_token * NAME.upstream)), loss_mean (over real labels), grad_mean.
.kminus1 is the other definition, of Megatron and NeMo: with s = E V / (V - 1), loss = (1 - s) nll - s mean(log p).
"""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import counter
import stored

SHAPE = (2, 4)
SEED = 11


def nemo_loss(logits, labels, smoothing):
    log_p = torch.log_softmax(logits, -1)
    classes = logits.shape[-1]
    s = smoothing * classes / (classes - 1)
    nll = -log_p.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return ((1 - s) * nll - s * log_p.mean(-1)) * labels.ne(-100)


def torch_loss(logits, labels, smoothing, reduction="none"):
    flat = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=reduction, label_smoothing=smoothing)
    return flat.view(labels.shape) if reduction == "none" else flat


def with_gradient(loss_of, logits, upstream):
    leaf = logits.clone().requires_grad_()
    loss = loss_of(leaf)
    (loss * upstream).sum().backward()
    return loss.detach().numpy().reshape(loss.shape or (1,)), leaf.grad.numpy()


def cases(name, logits, labels, upstream):
    out = {}
    for smoothing in (0.0, 0.1):
        kinds = {"": torch_loss} | ({".kminus1": nemo_loss} if smoothing else {})
        for kind, loss in kinds.items():
            key = f"{name}.ls{smoothing}{kind}"
            each = with_gradient(lambda x: loss(x, labels, smoothing), logits, upstream)
            out[key + ".loss_per_token"], out[key + ".grad_upstream"] = each
        key = f"{name}.ls{smoothing}"
        mean = with_gradient(lambda x: torch_loss(x, labels, smoothing, "mean"), logits, torch.ones(()))
        out[key + ".loss_mean"], out[key + ".grad_mean"] = mean
    return out


def main():
    torch.set_num_threads(1)
    out = {}
    for classes in (16, 24, 37):
        for name, scale, offset in ((f"v{classes}", 7.0, 0.0), (f"v{classes}_big", 140.0, 300.0)):
            logits = torch.from_numpy(counter.weights(SEED, name, (*SHAPE, classes), scale, offset))
            upstream = counter.weights(SEED, name + ".upstream", SHAPE, 4.0, 0.0)
            labels = counter.integers(SEED, name + ".labels", SHAPE, 0, classes)
            ignoring = labels.copy()
            ignoring[0, 1] = ignoring[1, 3] = -100
            out |= {f"{name}.upstream": upstream}
            out |= {f"{name}.labels": labels.astype(np.int32), f"{name}.labels_ignore": ignoring.astype(np.int32)}
            for kind, given in (("all", labels), ("ignore", ignoring)):
                out |= cases(f"{name}.{kind}", logits, torch.from_numpy(given), torch.from_numpy(upstream))
    stored.put_tensors(stored.HERE / "cross_entropy.safetensors", out, 1e-6)


main()
