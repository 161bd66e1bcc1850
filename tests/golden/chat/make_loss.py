"""Writes model/loss.json: transformers' loss on the assistants' bytes of model/chats.jsonl, and their number.

usage: make_loss.py [--check]    needs torch and transformers

The weights of model/ are those of a run of one step: cleave train --model CONFIG --chat-template chatml.
"""

import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.utils.chat_template_utils import render_jinja_template

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import stored  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent / "model"


def main():
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    template = (FOLDER / "chat_template.jinja").read_text(encoding="utf-8")

    def render(messages, prompt):
        return render_jinja_template([messages], chat_template=template, add_generation_prompt=prompt)[0][0].encode()

    total, count = 0.0, 0
    for line in (FOLDER / "chats.jsonl").read_text(encoding="ascii").splitlines():
        messages = json.loads(line)["messages"]
        ids = list(render(messages, False))
        labels = [-100] * len(ids)
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                begin, end = len(render(messages[:i], True)), len(render(messages[: i + 1], False))
                labels[begin:end] = ids[begin:end]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1]
        targets = torch.tensor(labels[1:])
        total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        count += (targets != -100).sum().item()
    stored.put_json(FOLDER / "loss.json", {"loss": round(total / count, 6), "tokens": count})


main()
