"""Compares training with transformers (and PEFT for adapters) and the optimizers of torch, where the order of the samples is
known: in file order, or if each step takes every sample equally often."""
import json
import os

import data
import models
import optimizers
import runs
import transformers_oracle
from comparison import compare_runs

# Flags that need random numbers of Cleave, or that transformers and torch do not have in this form.
UNCOMPARED = {"lora-dropout", "lora-base"}
NARROW = ("bf16", "fp16")
DROPOUTS = ("attention_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob")


BATCH_SIZE = 8  # without the flag, which a failure's smaller case may have lost

def check(work, out):
    """Compares the run on one rank with the same training in torch."""
    if not can_compare(work):
        return
    samples = samples_of(work)
    rows = runs.metrics_of(out)
    if not samples or not has_known_order(work, len(samples)):
        return
    request = request_of(work)
    if has_dropout(request["model"]):
        return
    folder = work.path("torch")
    steps = [parts_of(work, samples, number) for number in range(len(rows))]
    answers = transformers_oracle.ask({**request, "steps": steps, "rates": [row["lr"] for row in rows], "out": folder})
    if answers is None:
        return  # a step without labels
    with open(os.path.join(folder, "metrics.jsonl"), "w", encoding="ascii") as file:
        for row, answer in zip(rows, answers, strict=True):
            file.write(json.dumps({**row, **answer}) + "\n")
    # transformers computes angles and norms in fp32 whatever the dtype.
    compare_runs(work, folder, out, {}, dtype=work.dtype if work.dtype in NARROW else "fp32",
                 without=("optimizer.ema.", "optimizer.master."), is_torch=True)


def dtype_of_torch(work):
    """In bf16 and fp16 both sides would round, each in its own way. So torch computes in fp32, which is exact beside them."""
    return "fp32" if work.dtype in NARROW else work.dtype


def can_compare(work):
    flags, model = work.case["math"], work.inputs.model
    experts = model["family"] in models.WITH_EXPERTS
    return (transformers_oracle.can_compare(model, dtype_of_torch(work)) and not work.case["other"].get("weights")
            and UNCOMPARED.isdisjoint(flags)
            # transformers joins experts to tensors of three dims, which torch's Muon does not take.
            and not (flags.get("optimizer") == "muon" and (experts or not transformers_oracle.has_muon()))
            and not ("lora" in flags and (experts or not transformers_oracle.has_peft()))
            and not (model["balances"] and (flags.get("task") == "dpo" or "packing" in flags)))


def has_dropout(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return any(value for name, value in json.load(file).items() if name in DROPOUTS)


def texts_of(work):
    """The texts or pairs of the case's file in its order, each as transformers reads it; None if it means something else there."""
    inputs, flags = work.inputs, work.case["math"]
    form, path = inputs.data["form"], inputs.data_path
    if form == "pairs":
        return data.ids_of_pairs(path, flags["seq-len"])
    if form == "ids":
        return transformers_oracle.defined_rows(inputs)
    if form == "chats" and flags.get("chat-template") == "chatml":
        return data.rows_of_chats(path, flags["seq-len"], flags.get("train-on") == "all")
    if form in ("text", "text rows") and data.task_of(inputs.model) == "lm":
        if "packing" in flags:
            return list(data.rows_of_documents(path, form, flags["seq-len"]))
        return [{"input_ids": ids} for ids in data.ids_of_documents(path, form, flags["seq-len"])]
    return None


def samples_of(work):
    """The samples of the case's file in its order, as lists of texts that transformers reads one by one; None as above."""
    texts, flags = texts_of(work), work.case["math"]
    if texts and "packing" in flags:
        return data.packed(texts, flags["seq-len"])
    return texts and [[text] for text in texts]


def has_known_order(work, count):
    flags = work.case["math"]
    if "no-shuffle" in flags:
        return True
    # Shuffled texts may be packed in another way.
    return flags.get("batch-size", BATCH_SIZE) % count == 0 and not work.inputs.model["balances"] and "packing" not in flags


def parts_of(work, samples, step):
    """The samples of a step, by micro-batch where these have auxiliary losses of their own."""
    size = work.case["math"].get("batch-size", BATCH_SIZE)
    batch = [samples[(step * size + place) % len(samples)] for place in range(size)]
    if not work.inputs.model["balances"]:
        return [sum(batch, [])]
    batch = [text for text, in batch]  # never packed
    layout = work.case["layout"]
    dp, parts = layout["dp"], []
    for rank in range(dp):
        own = batch[size * rank // dp:size * (rank + 1) // dp]
        parts += [own[at:at + layout["micro-batch-size"]] for at in range(0, len(own), layout["micro-batch-size"])]
    return parts


def request_of(work):
    """The model, which may have begun with Cleave's random weights, and the settings of the optimizer."""
    flags, inputs = work.case["math"], work.inputs
    starts_random = inputs.model["source"] != "folder" or "lora" in flags
    initial = work.initial() if starts_random else inputs.model_path
    betas = [float(b) for b in str(flags.get("adam-betas", "0.9,0.95")).split(",")]
    glob, _, group = flags.get("param-group", ":").rpartition(":")
    return {"training": True, "model": inputs.model_path if "lora" in flags else initial,
            "adapter": initial if "lora" in flags else None, "task": data.task_of(inputs.model), "dtype": dtype_of_torch(work),
            "optimizer": flags.get("optimizer", "adamw"), "betas": betas, "eps": float(flags.get("adam-eps", 1e-8)),
            "decay": float(flags.get("weight-decay", 0.1)), "decay_on": flags.get("decay-on", "matrices"),
            "pattern": optimizers.pattern_of(glob) if glob else None,
            "group": dict(each.split("=") for each in group.split(",")) if glob else {},
            "clip": float(flags.get("clip", 1.0)), "beta": float(flags.get("dpo-beta", 0.1))}
