"""Random LoRA adapters in the form of PEFT, and the models that they should give when they are merged."""
import json
import os
import random
import shutil
import zlib

import tensor_file

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj", "c_attn",
           "c_proj", "c_fc", "w1", "w2", "w3")


def random_matrix(adapter, name, rows, columns, width):
    rng = random.Random(zlib.crc32(f"{adapter['seed']} {name}".encode()))
    values = [rng.uniform(-width, width) for _ in range(rows * columns)]
    return list(tensor_file.decoded(tensor_file.encoded(values, "fp32"), "F32"))


def targets_of(adapter, names):
    """The ends of the names of the layers that have an adapter: all that the model has, or some of them."""
    present = sorted({name.split(".")[-2] for name in names if name.endswith(".weight")} & set(TARGETS))
    chosen = random.Random(adapter["seed"]).sample(present, max(1, round(adapter.get("share", 1.0) * len(present))))
    return sorted(chosen)


def write(folder, adapter, model_path, is_gpt2, dtype="fp32"):
    """Writes the adapter of the model into `folder`, the merged model into `folder`-merged, and returns both paths.

    W + scale B A is computed in fp64 and rounded once, to `dtype`; with magnitudes m its rows are multiplied by m / norm of the row. A row
    is one output: a column of GPT-2's matrices.
    """
    os.makedirs(folder, exist_ok=True)
    base = tensor_file.read(os.path.join(model_path, "model.safetensors"))
    targets, rank = targets_of(adapter, base), adapter["rank"]
    scale = adapter["alpha"] / (rank**0.5 if adapter.get("rslora") else rank)
    parts, merged = {}, {name: (shape, "fp32", tensor_file.encoded(values, "fp32")) for name, (shape, values) in base.items()}
    for name, (shape, values) in base.items():
        path = name.removesuffix(".weight")
        if len(shape) != 2 or path.split(".")[-1] not in targets:
            continue
        out, width = shape[::-1] if is_gpt2 else shape
        a, b = random_matrix(adapter, path + " a", rank, width, 0.4), random_matrix(adapter, path + " b", out, rank, 0.4)
        parts |= {f"{path}.lora_A.weight": ([rank, width], a), f"{path}.lora_B.weight": ([out, rank], b)}
        magnitudes = [1 + x for x in random_matrix(adapter, path + " m", out, 1, 0.5)] if adapter.get("dora") else None
        if magnitudes:
            magnitudes = list(tensor_file.decoded(tensor_file.encoded(magnitudes, "fp32"), "F32"))
            parts[f"{path}.lora_magnitude_vector"] = ([out], magnitudes)
        at = (lambda o, i, n=out: i * n + o) if is_gpt2 else (lambda o, i, n=width: o * n + i)
        result = list(values)
        for o in range(out):
            row = [values[at(o, i)] + scale * sum(b[o * rank + r] * a[r * width + i] for r in range(rank)) for i in range(width)]
            factor = magnitudes[o] / sum(x * x for x in row)**0.5 if magnitudes else 1
            for i, x in enumerate(row):
                result[at(o, i)] = factor * x
        merged[name] = (shape, dtype, tensor_file.encoded(result, dtype))
    tensor_file.write(os.path.join(folder, "adapter_model.safetensors"),
                      {f"base_model.model.{name}": (shape, "fp32", tensor_file.encoded(values, "fp32"))
                       for name, (shape, values) in parts.items()}, {"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": model_path, "bias": "none", "r": rank,
              "lora_alpha": adapter["alpha"], "lora_dropout": 0.0, "target_modules": targets, "fan_in_fan_out": is_gpt2,
              "use_rslora": bool(adapter.get("rslora")), "use_dora": bool(adapter.get("dora")), "inference_mode": True}
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="ascii") as file:
        json.dump(config, file)
    target = folder + "-merged"
    shutil.copytree(model_path, target, ignore=shutil.ignore_patterns("model.safetensors"))
    tensor_file.write(os.path.join(target, "model.safetensors"), merged, {"format": "pt"})
    return folder, target

