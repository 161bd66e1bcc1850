"""Writes t5.safetensors: transformers' answers for the model of examples/encoder_decoder.

usage: make_t5.py [--check]
"""

import numpy as np
import torch
import transformers

import counter
import stored

torch.set_num_threads(1)
SEED, VOCAB, WIDTH, HEADS, LAYERS = 5, 19, 12, 3, 2
ROWS, SOURCE, TARGET = 2, 21, 7
# transformers' names, in the order in which the names of the example's layers replace them.
NAMES = [
    ("shared.weight", "embed.weight"),
    ("lm_head.weight", "head.weight"),
    ("encoder.final_layer_norm", "encoder_norm"),
    ("decoder.final_layer_norm", "decoder_norm"),
    (".block.", "."),
    (".layer.0.SelfAttention", ".self"),
    (".layer.1.EncDecAttention", ".cross"),
    (".layer.0.layer_norm", ".norm"),
    (".q.", ".q_proj."),
    (".k.", ".k_proj."),
    (".v.", ".v_proj."),
    (".o.", ".o_proj."),
    (".wi_0.", ".gate_proj."),
    (".wi_1.", ".up_proj."),
    (".wo.", ".down_proj."),
]


def example_name(name):
    is_decoder = name.startswith("decoder.block.")
    last = 2 if is_decoder else 1
    name = name.replace(f".layer.{last}.DenseReluDense", ".mlp").replace(f".layer.{last}.layer_norm", ".mlp_norm")
    if is_decoder:
        name = name.replace(".layer.1.layer_norm", ".cross_norm")
    for theirs, ours in NAMES:
        name = name.replace(theirs, ours)
    return name


def make_model():
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=2 * WIDTH,
        num_layers=LAYERS,
        num_decoder_layers=LAYERS,
        num_heads=HEADS,
        relative_attention_num_buckets=32,
        relative_attention_max_distance=128,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        dropout_rate=0.0,
        attn_implementation="eager",
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    # transformers 5 ties the head whatever the config says. T5 v1.1 has its own, and does not scale its input.
    model.lm_head.weight = torch.nn.Parameter(torch.empty(VOCAB, WIDTH))
    assert not config.scale_decoder_outputs
    for name, p in model.named_parameters():
        is_norm = p.dim() == 1
        value = counter.weights(SEED, example_name(name), list(p.shape), 0.5 if is_norm else 1.0, 1.0 if is_norm else 0.0)
        p.data.copy_(torch.from_numpy(value))
    return model


def answers(model, prefix, inputs):
    model.zero_grad()
    out = model(**{k: torch.from_numpy(v) for k, v in inputs.items()})
    out.loss.backward()
    result = {f"{prefix}.{k}": v.astype(np.int32) for k, v in inputs.items()}
    result[f"{prefix}.logits"] = out.logits.detach().numpy()
    result[f"{prefix}.loss"] = out.loss.detach().numpy().reshape(1)
    for name, p in model.named_parameters():
        result[f"{prefix}.grad.{example_name(name)}"] = p.grad.numpy().copy()
    return result


def main():
    model = make_model()
    ids = {
        "input_ids": counter.integers(SEED, "ids", (ROWS, SOURCE), 2, VOCAB),
        "decoder_input_ids": counter.integers(SEED, "decoder", (ROWS, TARGET), 2, VOCAB),
        "labels": counter.integers(SEED, "labels", (ROWS, TARGET), 2, VOCAB),
    }
    result = answers(model, "full", ids)
    padded = {name: value.copy() for name, value in ids.items()}
    padded["attention_mask"] = np.ones((ROWS, SOURCE), dtype=np.int64)
    padded["attention_mask"][1, SOURCE - 8 :] = 0
    padded["decoder_attention_mask"] = np.ones((ROWS, TARGET), dtype=np.int64)
    padded["decoder_attention_mask"][0, TARGET - 3 :] = 0
    padded["labels"][0, TARGET - 3 :] = -100
    result.update(answers(model, "pad", padded))
    stored.put_tensors(stored.HERE / "t5.safetensors", result, 1e-5)


main()
