"""Writes search.json: results of transformers' generate() for golden models with many options.

usage: make_search.py [--check]
"""

import json
import pathlib
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import make_models  # noqa: E402
import stored  # noqa: E402

MAX_NEW_TOKENS = 16

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


def run(model, prompt, eos, options):
    ids = torch.tensor([prompt])
    result = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        pad_token_id=make_models.PAD_ID,
        eos_token_id=eos,
        **options,
    )
    scores = getattr(result, "sequences_scores", None)
    return {
        "prompt": prompt,
        "options": options,
        "rows": [cut(row[len(prompt) :], eos) for row in result.sequences.tolist()],
        "scores": None if scores is None else [round(score, 6) for score in scores.tolist()],
    }


def cases_of(name):
    """Runs every set of options on one of three prompts; rounding must not change the ids."""
    spec = json.loads((stored.HERE / "models" / f"{name}.json").read_text())
    model, moved = make_models.load(spec), make_models.load(spec, perturbed=5e-6)
    ids, mask = make_models.prompts_of(spec)["batch"]
    for number, options in enumerate(CASES):
        prompt = ids[number % 3][mask[number % 3] == 1].tolist()
        case = run(model, prompt, spec["config"]["eos_token_id"], options)
        same = run(moved, prompt, spec["config"]["eos_token_id"], options)["rows"] == case["rows"]
        print(f"{name}: {options}", "" if same else "is left out: rounding changes its ids")
        if same:
            yield {"model": name, **case}


def main():
    cases = [case for name in ("llama-mha", "llama-gqa-tied") for case in cases_of(name)]
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    made_with = f"transformers {transformers.__version__}, torch 2.13.0, fp32, max_new_tokens {MAX_NEW_TOKENS}"
    text = '{"made_with": "' + made_with + '",\n "cases": [\n' + lines + "\n]}\n"
    stored.put_text(stored.HERE / "generate" / "search.json", text)


main()
