"""Random data files: sequences of ids, plain text, JSONL with text, chats or pairs, CSV for classification."""
import json
import os
import random

import models

DEFAULTS = {
    "form": "ids",       # ids | text | text rows | csv | chats | pairs
    "rows": 8, "shortest": 4, "longest": 4, "seed": 0,
    "labels": "all",     # all | some (others are -100); for language models
    "mask": "",          # "" | left | right | holes: attention_mask of some sequences
    "blank_rows": 0,     # sequences without labels and, if there is a mask, with only masked tokens
    "token_types": False,
}
NO_LABEL = -100
LABELS_SEQUENCES = ("classify", "multilabel", "regression")  # tasks


def full(data):
    return {**DEFAULTS, **data}


def task_of(model):
    is_trunk = model["family"] in models.ENCODERS and model["head"] == "trunk"
    if model["family"] == "imdb_bert" or model["head"] == "classify" or is_trunk:
        if model["head"] == "classify" and model["multilabel"]:
            return "multilabel"
        return "regression" if model["head"] == "classify" and model["classes"] == 1 else "classify"
    return "mlm" if model["family"] in models.ENCODERS else "lm"


def label_of(rng, model):
    """The class of a sequence, its classes, or the number that a regression learns of it."""
    if task_of(model) == "multilabel":
        return [i for i in range(model["classes"]) if rng.random() < 0.4]
    return round(rng.uniform(-2, 2), 3) if task_of(model) == "regression" else rng.randrange(model["classes"])


def attention_mask(rng, kind, length):
    hidden = rng.randint(0, length - 1)
    if kind == "left":
        return [0] * hidden + [1] * (length - hidden)
    if kind == "right":
        return [1] * (length - hidden) + [0] * hidden
    return [1] + [int(rng.random() < 0.7) for _ in range(length - 1)]


def row_of_ids(rng, data, model, number):
    m, task = model, task_of(model)
    length = rng.randint(data["shortest"], data["longest"])
    row = {"input_ids": [rng.randrange(m["vocab"]) for _ in range(length)]}
    blank = number < data["blank_rows"]
    if data["mask"]:
        row["attention_mask"] = [0] * length if blank else attention_mask(rng, data["mask"], length)
    if data["token_types"] and m["family"] in ("bert", "roberta"):
        row["token_type_ids"] = [rng.randrange(m["token_types"]) for _ in range(length)]
    if task in LABELS_SEQUENCES:
        row["label"] = label_of(rng, m)
    elif task == "mlm" or data["labels"] == "some" or blank:
        share = 0.4 if task == "mlm" or data["labels"] == "some" else 1.0
        labels = [rng.randrange(m["vocab"]) if task == "mlm" else i for i in row["input_ids"]]
        row["labels"] = [NO_LABEL if blank or rng.random() >= share else label for label in labels]
        if not blank and task == "mlm":
            row["labels"][0] = labels[0]
    return row


def words(rng, count):
    return " ".join(rng.choice(models.WORDS).lstrip("#") for _ in range(count))


def row_of_chat(rng, data):
    """A conversation, or a pair of answers to a question."""
    count = rng.randint(data["shortest"], data["longest"])
    if data["form"] == "pairs":
        return {"prompt": words(rng, 2), "chosen": " " + words(rng, count), "rejected": " " + words(rng, count + 1)}
    turns = [{"role": role, "content": words(rng, count)} for role in ("user", "assistant") * rng.randint(1, 2)]
    return {"messages": turns}


END_ID = 256  # of the byte tokenizer


def documents_of(path, form):
    with open(path, encoding="ascii") as file:
        return [file.read()] if form == "text" else [json.loads(line)["text"] for line in file]


def ids_of_documents(path, form, seq_len):
    """The sequences of a file of text: the documents' bytes, each with an end token, joined and divided."""
    ids = [i for text in documents_of(path, form) for i in (*text.encode(), END_ID)]
    return [ids[start:start + seq_len] for start in range(0, len(ids) - seq_len + 1, seq_len)]


def rows_of_documents(path, form, seq_len):
    """Yields the rows of ids whose losses are those of the documents of a file under --packing: a document's bytes and its end
    token, of which each part of `seq_len` tokens begins with the last token of the part before."""
    for text in documents_of(path, form):
        ids = [*text.encode(), END_ID]
        for start in range(0, max(len(ids) - 1, 1), seq_len - 1):
            yield {"input_ids": ids[start:start + seq_len]}


def write_rows_of_documents(path, source, form, seq_len):
    with open(path, "w", encoding="ascii") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows_of_documents(source, form, seq_len))


def packed(texts, seq_len):
    """The sequences of --packing --no-shuffle, as lists of texts: in the order of the file, each text goes into the fullest
    sequence that has room for it."""
    sequences, rooms = [], []
    for text in texts:
        length = len(text["input_ids"])
        fitting = [(room, place) for place, room in enumerate(rooms) if room >= length]
        if not fitting:
            sequences.append([])
            rooms.append(seq_len)
        place = min(fitting)[1] if fitting else len(sequences) - 1
        sequences[place].append(text)
        rooms[place] -= length
    return sequences


def rows_of_chats(path, seq_len, trains_all):
    """The rows of ids and labels of a file of chats under ChatML, in bytes. An answer and the end of its turn have labels, or
    everything. Chats whose answers come after `seq_len` tokens are left out."""
    rows = []
    with open(path, encoding="ascii") as file:
        for chat in map(json.loads, file):
            ids, labels = [], []
            for turn in chat["messages"]:
                head, text = f"<|im_start|>{turn['role']}\n".encode(), f"{turn['content']}<|im_end|>\n".encode()
                ids += head + text
                labels += head if trains_all else [NO_LABEL] * len(head)
                labels += text if trains_all or turn["role"] == "assistant" else [NO_LABEL] * len(text)
            rows.append({"input_ids": ids[:seq_len], "labels": labels[:seq_len]})
    return [row for row in rows if set(row["labels"]) != {NO_LABEL}]


def ids_of_pairs(path, seq_len):
    """(ids, place of the answer's first token) of both sequences of each pair that differ, as --task dpo reads them."""
    pairs = []
    with open(path, encoding="ascii") as file:
        for row in map(json.loads, file):
            prompt = list(row["prompt"].encode())
            both = [[*prompt, *row[name].encode(), END_ID][:seq_len] for name in ("chosen", "rejected")]
            if both[0] != both[1]:
                pairs.append([[ids, len(prompt)] for ids in both])
    return pairs


def write(folder, data, model, name="data"):
    """Writes the file and returns its path. `model` and `data` have every key."""
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(f"data {data['seed']} {name}")
    ends = {"ids": "jsonl", "text": "txt", "text rows": "jsonl", "csv": "csv", "chats": "jsonl", "pairs": "jsonl"}
    path = os.path.join(folder, f"{name}.{ends[data['form']]}")
    with open(path, "w", encoding="ascii") as file:
        if data["form"] == "csv":
            file.write("review,label\n")
        for number in range(data["rows"]):
            if data["form"] == "ids":
                file.write(json.dumps(row_of_ids(rng, data, model, number)) + "\n")
            elif data["form"] in ("chats", "pairs"):
                file.write(json.dumps(row_of_chat(rng, data)) + "\n")
            elif data["form"] == "text":
                file.write(words(rng, data["longest"]) + "\n")
            elif data["form"] == "text rows":
                row = {"text": words(rng, rng.randint(data["shortest"], data["longest"]))}
                if task_of(model) in LABELS_SEQUENCES:
                    row["label"] = label_of(rng, model)
                file.write(json.dumps(row) + "\n")
            else:
                text = words(rng, rng.randint(data["shortest"], data["longest"]))
                file.write(f'"{text}","{label_of(rng, model)}"\n')
    return path
