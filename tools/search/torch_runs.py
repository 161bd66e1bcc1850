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
UNCOMPARED = {"lora-dropout", "lora-base", "packing"}
DROPOUTS = ("attention_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob")


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
    compare_runs(work, folder, out, {}, dtype="fp32", without=("optimizer.ema.",))


def can_compare(work):
    flags, model = work.case["math"], work.inputs.model
    experts = model["family"] in models.WITH_EXPERTS
    return (transformers_oracle.can_compare(model, work.dtype) and not work.case["other"].get("weights")
            and flags.get("optimizer", "adamw") != "muon" and UNCOMPARED.isdisjoint(flags)
            and not ("lora" in flags and (experts or not transformers_oracle.has_peft()))
            and not (model["balances"] and flags.get("task") == "dpo"))


def has_dropout(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return any(value for name, value in json.load(file).items() if name in DROPOUTS)


def samples_of(work):
    """The samples of the case's file in its order, each as transformers reads it; None if it means something else there."""
    inputs, flags = work.inputs, work.case["math"]
    form, task = inputs.data["form"], data.task_of(inputs.model)
    if form == "pairs":
        return data.ids_of_pairs(inputs.data_path, flags["seq-len"])
    if form == "ids":
        return transformers_oracle.defined_rows(inputs)
    if form in ("text", "text rows") and task == "lm":
        return [{"input_ids": ids} for ids in data.ids_of_documents(inputs.data_path, form, flags["seq-len"])]
    return None


def has_known_order(work, count):
    flags = work.case["math"]
    return "no-shuffle" in flags or (flags["batch-size"] % count == 0 and not work.inputs.model["balances"])


def parts_of(work, samples, step):
    """The samples of a step, by micro-batch where these have auxiliary losses of their own."""
    size = work.case["math"]["batch-size"]
    batch = [samples[(step * size + place) % len(samples)] for place in range(size)]
    if not work.inputs.model["balances"]:
        return [batch]
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
            "adapter": initial if "lora" in flags else None, "task": data.task_of(inputs.model), "dtype": work.dtype,
            "optimizer": flags.get("optimizer", "adamw"), "betas": betas, "eps": float(flags.get("adam-eps", 1e-8)),
            "decay": float(flags.get("weight-decay", 0.1)), "decay_on": flags.get("decay-on", "matrices"),
            "pattern": optimizers.pattern_of(glob) if glob else None,
            "group": dict(each.split("=") for each in group.split(",")) if glob else {},
            "clip": float(flags.get("clip", 1.0)), "beta": float(flags.get("dpo-beta", 0.1))}
