"""Training with transformers, PEFT and torch.optim, for transformers_server.py. It writes what a run of Cleave has."""
import math
import os
import re
import shutil
import types
import unittest.mock

import torch
from safetensors.torch import load_file, save_file

STEP = "step_00000001"


def with_adapter(model, folder):
    import peft  # optional
    return peft.PeftModel.from_pretrained(model, folder, is_trainable=True)


def groups_of(model, request):
    """Groups of parameters with the factor of their rate and their decay, as --decay-on and --param-group say."""
    groups = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decays = parameter.dim() > 1 or request["decay_on"] == "all"
        factor, decay = 1.0, request["decay"] if decays else 0.0
        if request["pattern"] and re.search(request["pattern"], name):
            factor = float(request["group"].get("lr-factor", factor))
            decay = float(request["group"].get("weight-decay", decay))
        is_matrix = parameter.dim() == 2 and re.search(r"\.(layers|h|layer)\.\d+\.", name) is not None
        groups.append({"params": [parameter], "factor": factor, "weight_decay": decay, "is_matrix_of_block": is_matrix})
    return groups


class Muon(torch.optim.Muon if hasattr(torch.optim, "Muon") else object):
    """torch's Muon, whose iteration rounds matrices to bf16, in their own dtype."""

    def __init__(self, groups):
        super().__init__(groups, lr=1.0, adjust_lr_fn="match_rms_adamw")

    def step(self):
        with unittest.mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
            super().step()
        for state in self.state.values():
            state["exp_avg"] = state["momentum_buffer"]  # its name in Cleave's files


def optimizers_of(groups, request):
    """One optimizer, or Muon for the matrices of blocks and AdamW for the rest."""
    if request["optimizer"] == "sgd":
        return [torch.optim.SGD(groups, lr=1.0, foreach=False)]
    kind = torch.optim.Adam if request["optimizer"] == "adam" else torch.optim.AdamW
    is_muon = request["optimizer"] == "muon"
    matrices = [group for group in groups if is_muon and group["is_matrix_of_block"]]
    others = [group for group in groups if not (is_muon and group["is_matrix_of_block"])]
    adam = kind(others, lr=1.0, betas=tuple(request["betas"]), eps=request["eps"], foreach=False) if others else None
    return [each for each in (adam, Muon(matrices) if matrices else None) if each]


def padded(rows, key, fill):
    """The values of a key as a tensor, in which shorter rows end in `fill`; None if no row has the key."""
    longest = max(len(row["input_ids"]) for row in rows)
    lists = [row.get(key, visible_ids(row, fill) if key == "labels" else None) for row in rows]
    if all(values is None for values in lists):
        return None
    lists = [[0] * len(row["input_ids"]) if values is None else values for row, values in zip(rows, lists)]
    return torch.tensor([values + [fill] * (longest - len(values)) for values in lists])


def visible_ids(row, fill):
    """The labels of a row that names none: its ids, except where the attention mask hides them."""
    ids = row["input_ids"]
    return [i if seen else fill for i, seen in zip(ids, row.get("attention_mask", [1] * len(ids)))]


def labels_of(rows, task, num_classes):
    if task == "multilabel":
        return torch.tensor([[float(i in row["label"]) for i in range(num_classes)] for row in rows], dtype=torch.double)
    if task in ("classify", "regression"):
        return torch.tensor([row["label"] for row in rows], dtype=torch.long if task == "classify" else torch.double)
    labels = padded(rows, "labels", -100)
    return labels[:, 1:] if task == "lm" else labels


def one_by_one(model, rows):
    """A decoder's logits of classes."""
    logits = [model(input_ids=torch.tensor([row["input_ids"]])).logits for row in rows]
    return types.SimpleNamespace(logits=torch.cat(logits))


def part_loss(model, rows, task, num_labels):
    """The part's share of the mean loss over all labels of the step, and its auxiliary loss times its share of the labels."""
    # Causal attention keeps padding at the end from the tokens before it. Masked, it would have no key at all in a window of 1,
    # and its attention, NaN, would reach every token in the next layer. An auxiliary loss counts unmasked tokens.
    end = int(task == "lm" and not model.config.to_dict().get("output_router_logits"))
    mask = padded([{"attention_mask": [1] * len(row["input_ids"]), **row} for row in rows], "attention_mask", end)
    inputs = {"input_ids": padded(rows, "input_ids", 0), "attention_mask": mask}
    token_types = padded(rows, "token_type_ids", 0)
    if token_types is not None:
        inputs["token_type_ids"] = token_types
    labels = labels_of(rows, task, model.config.num_labels)
    if task in ("classify", "multilabel", "regression") and model.config.pad_token_id is None:  # then it takes only one text at a time
        output = one_by_one(model, rows)
    else:
        output = model(**inputs)
    if task == "multilabel":
        losses = torch.nn.functional.binary_cross_entropy_with_logits(output.logits.double(), labels, reduction="sum")
        return losses / num_labels, None
    if task == "regression":
        return (output.logits[:, 0].double() - labels).square().sum() / num_labels, None
    logits = output.logits[:, :-1] if task == "lm" else output.logits
    loss = torch.nn.functional.cross_entropy(logits.double().flatten(0, -2), labels.flatten(), reduction="sum") / num_labels
    share = int((labels != -100).sum()) / num_labels
    aux = getattr(output, "aux_loss", None)
    if not model.config.to_dict().get("output_router_logits"):
        return loss, None
    return loss + model.config.router_aux_loss_coef * share * aux, share * aux.item()


def log_prob(model, ids, begin):
    """The log-probability of ids[begin:] after ids[:begin]."""
    ids = torch.tensor([ids])
    logs = model(input_ids=ids).logits[0, :-1].double().log_softmax(-1).gather(1, ids[0, 1:, None])
    return logs[begin - 1:].sum()


def margin(model, pair):
    return log_prob(model, *pair[0]) - log_prob(model, *pair[1])


def step_losses(model, reference, parts, request):
    """Yields each part's loss, to be added up, and what the metrics have beside the loss; nothing if there are no labels."""
    if reference is not None:
        pairs = parts[0]
        for pair in pairs:
            with torch.no_grad():
                known = margin(reference, pair)
            reward = request["beta"] * (margin(model, pair) - known)
            yield -torch.nn.functional.logsigmoid(reward) / len(pairs), {"reward_margin": reward.item() / len(pairs)}
        return
    num_labels = sum(int((labels_of(rows, request["task"], model.config.num_labels) != -100).sum()) for rows in parts)
    for rows in parts if num_labels else ():
        loss, aux = part_loss(model, rows, request["task"], num_labels)
        yield loss, {} if aux is None else {"aux_loss": aux}


def train(request, load):
    """Trains and returns the metrics of each step; None if a step has no labels. `load(request)` opens the model."""
    model = load(request)
    is_dpo = isinstance(request["steps"][0][0][0], list)
    reference = load(request) if is_dpo else None
    if request["adapter"]:
        model = with_adapter(model, request["adapter"])
    groups = groups_of(model, request)
    optimizers = optimizers_of(groups, request)
    parameters, metrics = [group["params"][0] for group in groups], []
    for parts, rate in zip(request["steps"], request["rates"], strict=True):
        model.zero_grad()
        row = {"loss": 0.0}
        for loss, more in step_losses(model, reference, parts, request):
            loss.backward()
            row["loss"] += loss.item()
            for name, value in more.items():
                row[name] = row.get(name, 0.0) + value
        if all(parameter.grad is None for parameter in parameters):
            return None
        row["grad_norm"] = torch.nn.utils.clip_grad_norm_(parameters, request["clip"] or math.inf, foreach=False).item()
        metrics.append(row)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["factor"]
            optimizer.step()
    save(model, optimizers, request["out"])
    return metrics


def saved_tensors(model, folder):
    """What the model's files have, under the names that they have there. Without tensors that the model does not use, such as
    the first of an untied BERT's two biases."""
    model.save_pretrained(folder)
    unused = {name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None}
    path = next(os.path.join(folder, name) for name in ("adapter_model.safetensors", "model.safetensors")
                if os.path.exists(os.path.join(folder, name)))
    tensors = {name.removeprefix("base_model.model."): values for name, values in load_file(path).items()}
    shutil.rmtree(folder)
    return {name: values for name, values in tensors.items() if name not in unused}


def moments_of(model, optimizers, kind, folder):
    """The moments `kind` under the names of the model's files; {} if no optimizer has them."""
    states = {p: state for optimizer in optimizers for p, state in optimizer.state.items()}
    if not any(kind in state for state in states.values()):
        return {}
    for parameter in model.parameters():
        # NaN marks what this moment lacks, under whatever name it is saved.
        parameter.data = states.get(parameter, {}).get(kind, torch.full_like(parameter, math.nan))
    return {f"{kind}.{name}": values for name, values in saved_tensors(model, folder).items() if not values.isnan().all()}


def save(model, optimizers, out):
    """Writes the weights and the moments, as a checkpoint of Cleave has them."""
    folder = os.path.join(out, STEP)
    weights, moments = saved_tensors(model, os.path.join(out, "saved")), {}
    for kind in ("exp_avg", "exp_avg_sq"):
        moments |= moments_of(model, optimizers, kind, os.path.join(out, "saved"))
    os.makedirs(folder)
    save_file(weights, os.path.join(folder, "model.safetensors"))
    if moments:
        save_file(moments, os.path.join(folder, "optimizer.safetensors"))
    with open(os.path.join(out, "latest"), "w", encoding="ascii") as file:
        file.write(STEP)
