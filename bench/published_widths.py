#!/usr/bin/env python3
"""Trains models with the widths, heads and vocabularies of published ones, but few layers, with Cleave and with transformers,
and compares them: losses and norms of three AdamW steps in fp32, the change of the weights, and greedy ids.

The weights are random. The three rows of a step differ in length, so they are padded. AdamW's epsilon is large, so that the
change of a weight is smooth in its gradient: with the usual one, gradients near 0 would decide its sign.
Exit code: 0 all agree within the limits, 1 some do not or a program failed.

usage: published_widths.py [--cleave PROGRAM] [--only NAME,NAME] [--tokens N]
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

STEPS, LR, EPSILON = 3, 0.5, 0.1
NEW_TOKENS, PROMPT_TOKENS = 24, 40
LAYOUTS = ("", "--tp 2 --sequence-parallel", "--tp 3", "--dp 2 --fsdp", "--pp 2 --micro-batch-size 1")
# Rounding of fp32 in sums of some thousand terms; the steps follow each other, so it grows.
MAX_LOSS_ERROR, MAX_NORM_ERROR, MAX_CHANGE_ERROR = 1e-5, 1e-4, 1e-3

#        name: model_type and the sizes in its config.json
MODELS = {
    "smollm2-135m": ("llama", {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
                               "vocab_size": 49152, "tie_word_embeddings": True, "num_hidden_layers": 4}),
    "qwen2.5-0.5b": ("qwen2", {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2,
                               "vocab_size": 151936, "tie_word_embeddings": True, "num_hidden_layers": 3}),
    "qwen3-0.6b": ("qwen3", {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
                             "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True, "num_hidden_layers": 3}),
    "gemma3-270m": ("gemma3_text", {"hidden_size": 640, "intermediate_size": 2048, "num_attention_heads": 4,
                                    "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "num_hidden_layers": 6,
                                    "sliding_window": 128}),
    "phi3-mini": ("phi3", {"hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32,
                           "vocab_size": 32064, "num_hidden_layers": 1}),
    "olmo2-1b": ("olmo2", {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_key_value_heads": 16,
                           "vocab_size": 100352, "num_hidden_layers": 1}),
    "tinyllama-1.1b": ("llama", {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
                                 "num_key_value_heads": 4, "vocab_size": 32000, "num_hidden_layers": 2}),
    "gpt2": ("gpt2", {"n_embd": 768, "n_head": 12, "n_layer": 4, "vocab_size": 50257, "n_positions": 1024, "resid_pdrop": 0,
                      "embd_pdrop": 0, "attn_pdrop": 0}),
}


def make_model(family, sizes):
    """A random model, its norms and biases away from 1 and 0."""
    torch.manual_seed(1)
    ids = {"bos_token_id": 1, "eos_token_id": 2, **({} if family == "gpt2" else {"pad_token_id": 0})}
    config = transformers.AutoConfig.for_model(family, **sizes, **ids)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def make_rows(vocab_size, num_tokens):
    generator = torch.Generator().manual_seed(3)
    lengths = (num_tokens, num_tokens // 2 + 1, num_tokens - 7)
    return [torch.randint(3, vocab_size, (length,), generator=generator) for length in lengths]


def train(model, rows):
    """Losses and gradient norms of the steps."""
    pad = torch.nn.utils.rnn.pad_sequence
    ids, labels = pad(rows, batch_first=True), pad(rows, batch_first=True, padding_value=-100)
    mask = pad([torch.ones_like(row) for row in rows], batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.999), eps=EPSILON, weight_decay=0)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        # torch's own norm of large tensors has an error of 1e-3 in fp32.
        norms.append(sum(w.grad.double().square().sum().item() for w in model.parameters()) ** 0.5)
        optimizer.step()
    return losses, norms


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return done.stdout


def change_error(folder, before, after):
    """The error of the weights in a folder, relative to how much training has changed them."""
    got = {}
    for file in folder.glob("model*.safetensors"):
        got.update(load_file(file))
    wrong = sum((got[name] - weight).double().square().sum().item() for name, weight in after.items())
    moved = sum((before[name] - weight).double().square().sum().item() for name, weight in after.items())
    return (wrong / moved) ** 0.5


def compare(options, name, folder):
    """Prints a row for each layout; returns whether all agree."""
    model = make_model(*MODELS[name])
    model.save_pretrained(folder / "model")
    rows = make_rows(model.config.vocab_size, options.tokens)
    (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row.tolist()}) + "\n" for row in rows))
    prompt = rows[0][:PROMPT_TOKENS]
    with torch.no_grad():
        ids = model.generate(prompt.unsqueeze(0), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
    losses, norms = train(model, rows)
    model.zero_grad()
    before = load_file(folder / "model/model.safetensors")
    after = {weight: value.detach() for weight, value in model.named_parameters()}
    all_agree = True
    for number, layout in enumerate(LAYOUTS):
        out = folder / f"run{number}"
        run(options.cleave, "train", "--model", folder / "model", "--data", folder / "rows.jsonl", "--out", out,
            "--steps", STEPS, "--batch-size", len(rows), "--lr", LR, "--schedule", "constant", "--warmup", 0,
            "--adam-betas", "0.9,0.999", "--adam-eps", EPSILON, "--weight-decay", 0, "--clip", 1e9, *layout.split())
        steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        loss = max(abs(step["loss"] / want - 1) for step, want in zip(steps, losses, strict=True))
        norm = max(abs(step["grad_norm"] / want - 1) for step, want in zip(steps, norms, strict=True))
        change = change_error(out, before, after)
        shutil.rmtree(out)
        agrees = loss <= MAX_LOSS_ERROR and norm <= MAX_NORM_ERROR and change <= MAX_CHANGE_ERROR
        all_agree = all_agree and agrees
        print(f"| {name} | {layout or 'one rank'} | {loss:.1e} | {norm:.1e} | {change:.1e} | {'yes' if agrees else 'NO'} |",
              flush=True)
    answer = json.loads(run(options.cleave, "generate", "--model", folder / "model", "--max-new-tokens", NEW_TOKENS, "--tp", 2,
                            "--prompt-ids", ",".join(str(token) for token in prompt.tolist()), "--json"))
    agrees = answer["sequences"][0]["ids"] == ids[0, PROMPT_TOKENS:].tolist()
    print(f"| {name} | generate --tp 2 | | | | {'yes' if agrees else 'NO'} |", flush=True)
    return all_agree and agrees


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleave", default=pathlib.Path(__file__).resolve().parents[1] / "build/cleave")
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--tokens", type=int, default=301, help="of the longest row (default: 301)")
    options = parser.parse_args()
    unknown = [name for name in options.only.split(",") if name not in MODELS]
    if unknown:
        parser.error(f"--only {unknown[0]} is unknown; choose from {', '.join(MODELS)}")
    transformers.utils.logging.disable_progress_bar()
    print("| model | layout | loss | norm | change of the weights | agrees |\n|---|---|---|---|---|---|", flush=True)
    all_agree = True
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory(prefix="cleave-widths-") as folder:
            try:
                all_agree = compare(options, name, pathlib.Path(folder)) and all_agree
            except RuntimeError as problem:
                all_agree = False
                print(f"| {name} | failed: {problem} |", flush=True)
    return 0 if all_agree else 1


if __name__ == "__main__":
    sys.exit(main())
