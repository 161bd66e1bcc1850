"""Writes lora/NAME: PEFT's adapter of a golden model after three AdamW steps, and its answers. NAME-dora has magnitudes.

usage: make_lora.py [--check] [NAME...]    needs peft
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import peft
import torch
from safetensors.numpy import load_file

import counter
import make_models
import stored

RUNS = {
    "llama-6heads": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
    "gpt2": {"r": 3, "lora_alpha": 6, "use_rslora": True, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    "llama-6heads-dora": {"r": 4, "lora_alpha": 8, "use_dora": True, "target_modules": "all-linear"},
    "gpt2-dora": {"r": 3, "lora_alpha": 6, "use_dora": True, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
    "phi3": {"r": 4, "lora_alpha": 8, "target_modules": ["qkv_proj", "down_proj"]},
}
A_SCALE, B_SCALE = 0.5, 0.2
M_SCALE, M_CENTER = 0.5, 1.0  # of magnitudes


def start(model, seed):
    """Sets every adapter to uniform values of its name in the files, so that A and B both have gradients."""
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if "magnitude" in name:
            stored_name, scale, center = name.replace(".default.weight", ""), M_SCALE, M_CENTER
        else:
            stored_name, scale, center = name.replace(".default.", "."), A_SCALE if "lora_A" in name else B_SCALE, 0.0
        p.data.copy_(torch.from_numpy(counter.weights(seed, stored_name, list(p.shape), scale, center)))


def answers(name, folder):
    config = RUNS[name]
    name = name.removesuffix("-dora")
    spec = json.loads(pathlib.Path(stored.HERE, "models", name + ".json").read_text())
    model = peft.get_peft_model(make_models.load(spec), peft.LoraConfig(task_type="CAUSAL_LM", **config))
    start(model, spec["seed"])
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01)
    losses, norms = [], []
    for stream in ("input", "train1", "train2"):
        optimizer.zero_grad()
        loss = model(**make_models.tensors_of(make_models.batch(name, spec, stream))).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, float("inf")).item())
        losses.append(loss.item())
        optimizer.step()
    model.save_pretrained(folder)
    ids = make_models.tensors_of(make_models.batch(name, spec, "input"))["input_ids"]
    with torch.no_grad():
        logits = model.merge_and_unload()(input_ids=ids).logits.numpy()
    return {
        "loss": np.array(losses, dtype=np.float32),
        "grad_norm": np.array(norms, dtype=np.float32),
        "logits": logits,
    }


def main():
    for name in [a for a in sys.argv[1:] if a != "--check"] or RUNS:
        with tempfile.TemporaryDirectory() as folder:
            tensors = answers(name, folder)
            adapter = load_file(pathlib.Path(folder, "adapter_model.safetensors"))
            config = json.loads(pathlib.Path(folder, "adapter_config.json").read_text())
            config["target_modules"] = sorted(config["target_modules"])
            config["base_model_name_or_path"] = name.removesuffix("-dora")  # not the folder of this run
        target = stored.HERE / "lora" / name
        if not stored.CHECKS:
            target.mkdir(parents=True, exist_ok=True)
        stored.put_text(target / "adapter_config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")
        stored.put_tensors(target / "adapter_model.safetensors", adapter, 1e-4)
        stored.put_tensors(target / "answers.safetensors", tensors, 1e-5)


main()
