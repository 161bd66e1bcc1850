"""Writes search.json: what transformers' generate() gives for the models of the goldens under many options.

usage: make_search.py DATA_FOLDER > search.json
"""

import json
import sys

import torch
import transformers
from transformers import LlamaForCausalLM

torch.set_num_threads(1)
MAX_NEW_TOKENS = 16
PAD_ID = 3

CASES = [
    dict(num_beams=4, num_return_sequences=2, early_stopping=True),
    dict(num_beams=4, num_return_sequences=2, early_stopping="never"),
    dict(num_beams=4, num_return_sequences=2, length_penalty=0.0),
    dict(num_beams=4, num_return_sequences=2, length_penalty=2.5, early_stopping="never"),
    dict(num_beams=4, num_return_sequences=2, length_penalty=-1.0),
    dict(num_beams=3, num_return_sequences=2, repetition_penalty=1.4),
    dict(num_beams=3, num_return_sequences=2, no_repeat_ngram_size=2),
    dict(num_beams=3, num_return_sequences=1, no_repeat_ngram_size=1, repetition_penalty=0.8),
    dict(repetition_penalty=1.4),
    dict(no_repeat_ngram_size=2),
    dict(no_repeat_ngram_size=3, repetition_penalty=1.2),
]


def cut(ids, eos):
    return ids[: ids.index(eos) + 1] if eos in ids else ids


def run(model, golden, number, options):
    row = number % 3
    pairs = zip(golden["batch.prompt"][row], golden["batch.mask"][row])
    prompt = [one for one, is_real in pairs if is_real]
    ids = torch.tensor([prompt])
    result = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        pad_token_id=PAD_ID,
        eos_token_id=golden["eos_token_id"],
        **options,
    )
    scores = getattr(result, "sequences_scores", None)
    return {
        "prompt": prompt,
        "options": options,
        "rows": [cut(row[len(prompt) :], golden["eos_token_id"]) for row in result.sequences.tolist()],
        "scores": None if scores is None else scores.tolist(),
    }


def main():
    cases = []
    for name in ["llama-mha", "llama-gqa-tied"]:
        folder = f"{sys.argv[1]}/goldens/{name}"
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        golden = json.load(open(f"{folder}/generate.json"))
        for number, options in enumerate(CASES):
            cases.append({"model": name, **run(model, golden, number, options)})
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    made_with = f"transformers {transformers.__version__}, torch 2.13.0, fp32, max_new_tokens {MAX_NEW_TOKENS}"
    print('{"made_with": "' + made_with + '",\n "cases": [\n' + lines + "\n]}")


main()
