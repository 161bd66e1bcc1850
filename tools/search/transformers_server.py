"""Computes cases with transformers, in the Python of CLEAVE_PYTHON; each request and answer is a line of JSON.

A request has `model` (a folder), `task`, `dtype` and either `rows` (the answer is a loss), `prompts` and `flags` of
`cleave generate` (the answer is a list of lists of ids), `pairs`, `reference` and `beta` (the answer is the loss of DPO),
`texts` and `length` (the answer is that of `cleave predict --json`), or `training` (see transformers_training.py).
"""
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402

import transformers_training  # noqa: E402

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
TYPES = {"fp32": torch.float32, "fp64": torch.float64}
CLASSES = {"lm": transformers.AutoModelForCausalLM, "mlm": transformers.AutoModelForMaskedLM,
           "classify": transformers.AutoModelForSequenceClassification,
           "multilabel": transformers.AutoModelForSequenceClassification,
           "regression": transformers.AutoModelForSequenceClassification, "pretraining": transformers.AutoModelForPreTraining}


def load(request, name="model"):
    # With the config's dtype, transformers would round those tensors that the file has in a wider one.
    options = {"attn_implementation": "eager", "dtype": TYPES[request["dtype"]]}
    if transformers.AutoConfig.from_pretrained(request[name]).model_type in ("mixtral", "qwen3_moe"):
        options["experts_implementation"] = "eager"  # others need widths that are multiples of 16 bytes
    return CLASSES[request["task"]].from_pretrained(request[name], **options).eval()


def loss(request):
    """Mean over all labels of all sequences, computed one by one, without padding."""
    model, total, count = load(request), 0.0, 0
    for row in request["rows"]:
        inputs = {key: torch.tensor([row[key]]) for key in ("input_ids", "attention_mask", "token_type_ids") if key in row}
        logits = model(**inputs).logits[0].double()
        if request["task"] == "regression":
            total, count = total + (logits.item() - row["label"]) ** 2, count + 1
            continue
        if request["task"] == "multilabel":
            labels = transformers_training.labels_of([row], "multilabel", len(logits))[0]
            total += torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum").item()
            count += len(logits)
            continue
        if request["task"] == "classify":
            labels, logits = torch.tensor([row["label"]]), logits[None]
        else:
            labels = torch.tensor(row.get("labels", transformers_training.visible_ids(row, -100)))
            if request["task"] == "lm":
                labels, logits = labels[1:], logits[:-1]
        total += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        count += int((labels != -100).sum())
    return total / count if count else None


def preference_loss(request):
    """Mean over pairs of -log sigmoid(beta (difference under the model - difference under the reference))."""
    both, total = (load(request), load(request, "reference")), 0.0
    for pair in request["pairs"]:
        margin, reference = (transformers_training.margin(model, pair) for model in both)
        total -= torch.nn.functional.logsigmoid(request["beta"] * (margin - reference)).item()
    return total / len(request["pairs"])


def predictions(request):
    """What `cleave predict --json` prints for each text, with all words of the vocabulary."""
    tokenizer, model, out = transformers.AutoTokenizer.from_pretrained(request["model"]), load(request), []

    def ranked(logits, name):
        chances = logits.double().softmax(-1).tolist()
        return [{**name(i), "probability": chances[i]} for i in sorted(range(len(chances)), key=lambda i: -chances[i])]

    for text in request["texts"]:
        inputs = tokenizer(text, truncation=True, max_length=request["length"], return_tensors="pt")
        answer = model(**inputs)
        if request["task"] == "classify":
            out.append({"text": text, "labels": ranked(answer.logits[0], lambda i: {"label": model.config.id2label[i]})})
            continue
        logits = answer.logits if request["task"] == "mlm" else answer.prediction_logits
        places = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten().tolist()
        out.append({"text": text, "masks": [{"token": at, "words": ranked(logits[0, at], lambda i: {"id": i})} for at in places]})
    return out


def answer_to(request):
    if "training" in request:
        with torch.enable_grad():
            return transformers_training.train(request, load)
    answers = {"pairs": preference_loss, "prompts": generated, "texts": predictions, "rows": loss}
    return next(answer for name, answer in answers.items() if name in request)(request)


def generated(request):
    model, flags, out = load(request), request["flags"], []
    eos = flags.get("eos-id", model.config.eos_token_id)
    early = {"true": True, "false": False, "never": "never"}[flags.get("early-stopping", "false")]
    # Only the settings of the call, not those of the model's generation_config.json.
    model.generation_config = transformers.GenerationConfig(
        max_new_tokens=flags["max-new-tokens"], num_beams=flags.get("num-beams", 1), do_sample=False, eos_token_id=eos,
        num_return_sequences=flags.get("num-return-sequences", 1), length_penalty=flags.get("length-penalty", 1.0),
        repetition_penalty=flags.get("repetition-penalty", 1.0), no_repeat_ngram_size=flags.get("no-repeat-ngram-size", 0),
        early_stopping=early if flags.get("num-beams", 1) > 1 else False, pad_token_id=model.config.vocab_size,
        # Its cache keeps the last (window - 1) keys as [-(window - 1):], which is all of them for a window of 1. With longrope, it
        # does not compute the keys of a prompt of one id again where the long factors begin after one id.
        use_cache=getattr(model.config, "sliding_window", None) != 1
        and (getattr(model.config, "rope_parameters", None) or {}).get("rope_type") != "longrope")
    for prompt in request["prompts"]:
        ids = torch.tensor([prompt])
        answer = model.generate(ids, attention_mask=torch.ones_like(ids))
        rows = [[i for i in row[len(prompt):] if i != model.config.vocab_size] for row in answer.tolist()]
        out.append(rows)
    return out


def main():
    for line in sys.stdin:
        request = json.loads(line)
        try:
            with torch.no_grad():
                answer = {"answer": answer_to(request)}
        except Exception as error:  # reported by the search, with the case
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
