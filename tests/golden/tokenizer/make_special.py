"""Writes what transformers' AutoTokenizer takes as the special tokens of a folder.

usage: make_special.py [--check]

special.json: the folder of the tokenizer.json, the tokenizer_config.json beside it, and the ids of bos, eos, pad, unk, cls, sep
and mask.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import stored  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

HERE = stored.HERE / "tokenizer"
ROLES = ["bos", "eos", "pad", "unk", "cls", "sep", "mask"]

FOLDERS = [
    ("llama2", dict(tokenizer_class="LlamaTokenizer", pad_token="<unk>")),
    ("llama2", dict(tokenizer_class="LlamaTokenizerFast", eos_token=None, pad_token="<unk>")),
    ("llama2", dict(tokenizer_class="LlamaTokenizer", eos_token=None)),
    ("gpt2", dict(tokenizer_class="GPT2Tokenizer", pad_token="<|endoftext|>")),
    ("gpt2", dict(tokenizer_class="Qwen2Tokenizer", unk_token="<|endoftext|>")),
    ("bert", dict(tokenizer_class="BertTokenizer", unk_token="[UNK]")),
    ("gemma", dict(tokenizer_class="GemmaTokenizer", unk_token="<unk>")),
]  # fmt: skip


def answer(name, config):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "small" / name / "tokenizer.json", folder)
        pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [getattr(tokenizer, f"{role}_token_id") for role in ROLES]
    return {"tokenizer": name, "config": config, "ids": ids}


stored.put_json(HERE / "special.json", [answer(*folder) for folder in FOLDERS])
