"""Writes what transformers' LlamaTokenizer gives for folders with a tokenizer.model and no tokenizer.json.

usage: make_added.py [--check]

added.json: by name, the files beside small/llama2/tokenizer.model, the ids of the roles, the number of ids and, for each
text, its ids without special tokens and, where the files say which are added, with them ("with_special"), the text of the ids,
and that without special tokens. For "meta", which has no such files, they are those of the SentencePiece library for the
texts between special tokens, as in Meta's program.
"""

import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import stored  # noqa: E402
from sentencepiece import SentencePieceProcessor  # noqa: E402
from transformers import LlamaTokenizer  # noqa: E402

HERE = stored.HERE / "tokenizer"
MODEL = HERE / "small" / "llama2" / "tokenizer.model"
ROLES = ["bos", "eos", "pad", "unk"]

TEXTS = [
    "<s>[INST] hi there [/INST] ab </s>", "<s> x", "a<s>b </s>  c", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a <fun>b", " lead", "  two", "\u2581x", "<s>\u2581x", "<unk>x", "<s></s>", "", "<s>", "</s> ", "new\n\n<fun>",
    "caf\u00e9 <|im_end|>\U0001f600 \u4f60\u597d", "<pad><pad>x", "[PAD] x", "</s", "<|im_end|><|im_end|> y", "x<|im_start|> \n y",
]  # fmt: skip
CHATML = {"<|im_end|>": 2000, "<|im_start|>": 2001}
MARKS = [{"content": text, "special": True, "rstrip": True} for text in ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")]


def config(**settings):
    return {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", **settings}}


FOLDERS = {
    "plain": config(legacy=False, add_bos_token=True),
    "legacy": config(legacy=True, add_bos_token=True),
    "no-prefix": config(add_prefix_space=False),
    "null-legacy": config(legacy=None),
    "pad-only": config(pad_token="<unk>"),
    "null-end": config(eos_token=None),
    "ends": config(add_eos_token=True, add_bos_token=False),
    "chatml": config(eos_token="<|im_end|>", pad_token="<pad>") | {"added_tokens.json": {**CHATML, "<fun>": 2002}},
    "legacy-chatml": config(legacy=True) | {"added_tokens.json": CHATML},
    "map": config() | {"added_tokens.json": CHATML, "special_tokens_map.json": {"eos_token": {"content": "<|im_end|>"}}},
    "without-ids": config(pad_token="[PAD]", additional_special_tokens=["<|im_start|>", "<|im_end|>"]),
    "additional": config(additional_special_tokens=["<|im_start|>"]) | {"added_tokens.json": CHATML},
    "decoder": config(
        added_tokens_decoder={
            str(i if i < 3 else 1997 + i): {"lstrip": False, "normalized": False, "single_word": False, **mark}
            for i, mark in enumerate(MARKS)
        }
    ),
}


def answers(name, files):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(MODEL, folder)
        for file, content in files.items():
            pathlib.Path(folder, file).write_text(json.dumps(content))
        tokenizer = LlamaTokenizer.from_pretrained(folder)
    says_which = "add_bos_token" in files["tokenizer_config.json"]
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        case = {"text": text, "ids": ids, "decoded": tokenizer.decode(ids)}
        case["decoded_plain"] = tokenizer.decode(ids, skip_special_tokens=True)
        if says_which:
            case["with_special"] = tokenizer.encode(text)
        cases.append(case)
    special = {role: getattr(tokenizer, f"{role}_token_id") for role in ROLES}
    return {"name": name, "files": files, "special": special, "size": len(tokenizer), "cases": cases}


def meta():
    library = SentencePieceProcessor(model_file=str(MODEL))
    special = {"<unk>": 0, "<s>": 1, "</s>": 2}
    cases = []
    for text in TEXTS:
        parts = re.split("(<unk>|<s>|</s>)", text)
        ids = [i for part in parts for i in ([special[part]] if part in special else library.encode(part))]
        cases.append({"text": text, "ids": ids, "with_special": [1, *ids]})
    ids = {role: i if i >= 0 else None for role in ROLES for i in [getattr(library, f"{role}_id")()]}
    return {"name": "meta", "files": {}, "special": ids, "size": library.get_piece_size(), "cases": cases}


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    stored.put_json(HERE / "added.json", [meta(), *(answers(*folder) for folder in FOLDERS.items())])


main()
