#!/usr/bin/env python3
"""Writes a model with random weights in the format of a baseline, and prints its path.

usage: make_model.py --shape gpt2-124m|llama-135m|llama-1.1b --kind hf|ids|gguf|ct2 --dtype fp32|bf16|int8|int4|int4_sym
       --folder FOLDER [--cleave CLEAVE]

hf is a folder for transformers (vLLM reads it; ct2 is converted from it), ids the same without a tokenizer, gguf a file
for llama.cpp, ct2 a folder for CTranslate2. Existing models are kept. All layers of a gguf file have the same numbers,
which does not affect times. A gguf file of int4 is Q4_K_M, which CLEAVE converts from the fp32 file; one of int4_sym is Q4_0.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import shapes


def parse_options():
    parser = argparse.ArgumentParser(description="writes a model with random weights")
    parser.add_argument("--shape", required=True, choices=["gpt2-124m", "llama-135m", "llama-1.1b"])
    parser.add_argument("--kind", required=True, choices=["hf", "ids", "gguf", "ct2"])
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16", "int8", "int4", "int4_sym"])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--cleave", default="build/cleave", help="converts gguf files of int4 (default: build/cleave)")
    return parser.parse_args()


def write_hf(options, path):
    """Writes config.json with both names of rotary settings, weights, and for kind hf a tokenizer with words t0, t1, ..."""
    import tokenizers
    import torch
    import transformers

    model = shapes.make_model(options.shape).to(torch.bfloat16 if options.dtype == "bf16" else torch.float32)
    model.save_pretrained(path)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    if shapes.SHAPES[options.shape].family == "llama":
        config.setdefault("rope_theta", 10000.0)
        config.setdefault("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0})
    else:
        config.setdefault("n_ctx", config["n_positions"])
    (path / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    if options.kind == "ids":
        return
    words = {f"t{number}": number for number in range(config["vocab_size"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="t0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="t1", eos_token="t2",
                                         unk_token="t0").save_pretrained(path)


def write_ct2(options, path):
    import ctranslate2

    source = model_path(argparse.Namespace(shape=options.shape, kind="hf", dtype="fp32", folder=options.folder))
    quantization = {"fp32": "float32", "int8": "int8"}[options.dtype]
    ctranslate2.converters.TransformersConverter(str(source)).convert(str(path), quantization=quantization, force=True)


def gguf_sizes(shape):
    """Names and sizes [out, in] of a layer's tensors and of the others, as llama.cpp calls them."""
    config = shapes.model_config(shape)
    width, vocab_size = config.hidden_size, config.vocab_size
    if shapes.SHAPES[shape].family == "gpt2":
        inner = 4 * width
        matrices = {"attn_qkv": (3 * width, width), "attn_output": (width, width), "ffn_up": (inner, width),
                    "ffn_down": (width, inner)}
        layer = {f"{name}.weight": size for name, size in matrices.items()}
        layer |= {f"{name}.bias": size[:1] for name, size in matrices.items()}
        layer |= {f"{norm}.{part}": (width,) for norm in ("attn_norm", "ffn_norm") for part in ("weight", "bias")}
        others = {"token_embd.weight": (vocab_size, width), "position_embd.weight": (config.n_positions, width),
                  "output_norm.weight": (width,), "output_norm.bias": (width,)}
        return config, layer, others
    inner, kv_width = config.intermediate_size, width // config.num_attention_heads * config.num_key_value_heads
    layer = {"attn_q.weight": (width, width), "attn_k.weight": (kv_width, width), "attn_v.weight": (kv_width, width),
             "attn_output.weight": (width, width), "ffn_gate.weight": (inner, width), "ffn_up.weight": (inner, width),
             "ffn_down.weight": (width, inner), "attn_norm.weight": (width,), "ffn_norm.weight": (width,)}
    others = {"token_embd.weight": (vocab_size, width), "output.weight": (vocab_size, width),
              "output_norm.weight": (width,)}
    return config, layer, others


def gguf_header(writer, config, family):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")  # prompts are ids
    if family == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10000.0)


def q6_k_blocks(values):
    """Rows of multiples of 256 numbers as Q6_K, which the gguf package only decodes: 210 bytes for each 256."""
    import numpy

    groups = values.reshape(-1, 16, 16)
    largest = numpy.abs(groups).max(2)
    step = largest.max(1, keepdims=True) / (31 * 127)
    scales = numpy.rint(largest / 31 / step).clip(1, 127)
    numbers = (numpy.rint(groups / (step * scales)[:, :, None]).clip(-32, 31) + 32).astype(numpy.uint8)
    quarters = numbers.reshape(-1, 2, 4, 32)  # of each half: elements 0 to 31, 32 to 63, 64 to 95, 96 to 127
    low, high = quarters & 15, quarters >> 4
    lower = low[:, :, :2] | low[:, :, 2:] << 4
    upper = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    parts = [lower.reshape(-1, 128), upper.reshape(-1, 64), scales.astype(numpy.int8).view(numpy.uint8),
             step.astype(numpy.float16).view(numpy.uint8)]
    return numpy.concatenate(parts, axis=1).reshape(len(values), -1)


def convert_gguf(options, path):
    """Q4_K_M of the fp32 file, as `cleave convert` writes it."""
    source = model_path(argparse.Namespace(**{**vars(options), "dtype": "fp32"}))
    subprocess.run([options.cleave, "convert", "--from", str(source), "--to", str(path), "--format", "gguf", "--dtype",
                    "q4_k_m"], check=True, stdout=sys.stderr)


def write_gguf(options, path):
    """Matrices in the dtype (int8 is Q8_0, int4_sym Q4_0 with the output matrix in Q6_K), vectors and positions in fp32."""
    import gguf
    import numpy

    if options.dtype == "int4":
        return convert_gguf(options, path)
    kinds = {"fp32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4_sym": "Q4_0"}
    matrix_type = gguf.GGMLQuantizationType[kinds[options.dtype]]
    config, layer, others = gguf_sizes(options.shape)
    output = "output.weight" if "output.weight" in others else "token_embd.weight"
    family = shapes.SHAPES[options.shape].family
    writer = gguf.GGUFWriter(str(path), family)
    gguf_header(writer, config, family)
    source = numpy.random.default_rng(1)

    def values(name, size):
        if len(size) == 1:
            plain = numpy.full(size, 0.0 if name.endswith("bias") else 1.0, numpy.float32)
        else:
            plain = source.standard_normal(size, numpy.float32) * numpy.float32(0.02)
        is_plain = len(size) == 1 or name.startswith("position")
        if options.dtype == "int4_sym" and name == output:  # as llama.cpp's own Q4_0 files have it
            return q6_k_blocks(plain), gguf.GGMLQuantizationType.Q6_K
        kind = gguf.GGMLQuantizationType.F32 if is_plain else matrix_type
        return (plain if kind == gguf.GGMLQuantizationType.F32 else gguf.quants.quantize(plain, kind)), kind

    shared = {name: values(name, size) for name, size in layer.items()}
    tensors = {name: values(name, size) for name, size in others.items()}
    for number in range(config.num_hidden_layers):
        tensors |= {f"blk.{number}.{name}": value for name, value in shared.items()}
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def model_path(options):
    """The model's path; writes it first if it does not exist. An unfinished model has another name."""
    ending = ".gguf" if options.kind == "gguf" else ""
    path = options.folder / f"{options.shape}-{options.kind}-{options.dtype}{ending}"
    if path.exists():
        return path
    options.folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"partial-{path.name}")
    if partial.is_dir():
        shutil.rmtree(partial)
    {"hf": write_hf, "ids": write_hf, "gguf": write_gguf, "ct2": write_ct2}[options.kind](options, partial)
    partial.rename(path)
    return path


if __name__ == "__main__":
    print(model_path(parse_options()))
    sys.exit(0)
