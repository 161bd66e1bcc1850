"""Trains tokenizers of 700 to 2,000 entries and writes the results of the `tokenizers` library for difficult strings.

usage: make_small.py [--check]

small/strings.jsonl: the strings; small/NAME/tokenizer.json; small/NAME.jsonl: the ids of each string without and with
special tokens ("...ids" stands for the former) and the text of the ids, where it is not the string; small/batch.json: padded
and truncated batches, and the text of the first 1, 2, 3, ... ids. small/llama2/tokenizer.model has the entries of llama2 as a
SentencePiece model; "spm" and "spm_decoded" are what the SentencePiece library answers for it, "same" where that is the same.
small/families.json: the normalizers and pre-tokenizers of other families, and the strings that they give other ids than
gpt2, llama2 and llama3, with these vocabularies. Those two of byte-level BPE have tokens across each other's borders of words.
The training text is the licence and words made of syllables of many scripts, drawn by ../counter.py.
"""

import json
import pathlib
import struct
import sys
import tempfile
import unicodedata

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import counter  # noqa: E402
import stored  # noqa: E402
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers  # noqa: E402
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer, sentencepiece_model_pb2  # noqa: E402
from tokenizers import pre_tokenizers, processors, trainers  # noqa: E402

HERE = stored.HERE / "tokenizer" / "small"
ENTRIES = 2000
ENTRIES_OF = {"gemma": 1000, "xlm-roberta": 700}
SPACE = "\u2581"  # SentencePiece's symbol for a space

# Syllables: Latin, with accents, Cyrillic, Greek, Arabic, Hebrew, Devanagari, Thai, Chinese, Japanese, Korean.
SCRIPTS = [
    "ba be bi bo ca ce co da de di en er fa ga he in ing ka la le li ma me mo na ne on or ra re sa st ta te th un",
    "\u00e9 \u00e8r \u00eat \u00fcn \u00f6 \u00f1a \u00e7a \u00df \u0142o \u00f8r \u00e5n \u0161e \u017ei \u0151",
    "\u043f\u0440\u0438 \u0432\u0435 \u0442\u043e \u043d\u0430 \u0441\u0442 \u043a\u043e \u043b\u044e \u0436\u0438",
    "\u03b1\u03bb \u03b7\u03bc \u03ad\u03c1 \u03bf\u03c2 \u03ba\u03b1 \u03bd\u03b5",
    "\u0627\u0644 \u0633\u0644\u0627 \u0645\u0646 \u0643\u062a\u0627 \u0628\u064e",
    "\u05e9\u05dc \u05d5\u05dd \u05d0\u05d1",
    "\u0928\u092e \u0938\u094d\u0924\u0947 \u0915\u093f \u0939\u0948\u0902",
    "\u0e2a\u0e27\u0e31 \u0e2a\u0e14\u0e35 \u0e44\u0e17\u0e22",
    "\u4f60 \u597d \u4e16 \u754c \u4e2d \u6587 \u4eba \u5927 \u5b66 \u65e5",
    "\u3053\u3093 \u306b\u3061 \u306f \u30c6\u30b9 \u30c8",
    "\uc548\ub155 \ud558\uc138 \uc694 \ud55c \uad6d",
]
SEPARATORS = [" ", " ", " ", " ", ", ", ". ", "\n", " - ", " (", ") ", "'s ", ": ", "  "]
CODE = [
    "for (int i = 0; i < n; ++i) {\n    sum += values[i];\n}\n",
    "def main():\n\tprint('hello, world')  # 123\n",
    "int64_t x = 0x1F, y = 1234567890;\r\n",
    '{"key": [1, 2.5, null], "other": "text"}\n',
    "I'll say they've done it; don't you think we're right? It's 3.14159 or 2,718,281.\n",
    "\U0001f600 \U0001f680 \u2764\ufe0f \u2026 \u201cquoted\u201d \u2014 \u20ac 5 \u00bd\n",
]

# Each is a test string, and a piece of random test strings.
NASTY = [
    "", " ", "  ", "   a", "a   ", "\n", "\n\n\n", "\r\n\r\n x", "\t\t\tx", " \n \t ", "\u00a0x\u00a0", "\u2003wide\u3000",
    "\u200b", "\ufeffbom", "a\u0000b", "\u0001\u0002\u001f", "\u007f\u0080\u009f", "\ufffd", "\ufffe\uffff", "\u00ad",
    "e\u0301", "\u00e9", "A\u030a\u0327", "\u0301", "a\u0300\u0301\u0302\u0303\u0304", "\u1e9b\u0323", "\ufb01n", "\u0130I\u0131i",
    "\u00df\u1e9e", "\u01c5", "\u03a3\u03c3\u03c2", "\u0345", "\u212b\u2126", "\u1112\u1161\u11ab", "\ud55c", "\u0e33", "\u0f43",
    "\u0915\u094d\u0937\u093f", "\u0628\u0650\u0633\u0652\u0645\u0650", "\u05e9\u05bc\u05c1", "\u200f\u05d0\u200e", "\u202eabc\u202c",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f1eb\U0001f1f7", "1\ufe0f\u20e3",
    "\u2764\ufe0f", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001d54f", "\U00020000\U0002a6d6", "\U0010ffff", "\ue000",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\uff21\uff22\uff43", "\u3053\u3093\u306b\u3061\u306f\u30c6\u30b9\u30c8\u30fc",
    "\u2581", "\u2581a \u2581\u2581b", "\u0120x\u010a", "<0x41>", "##ing", "@@", "</w>",
    "1", "12", "123", "1234", "12345678901234567890", "1.5e-10", "\u0661\u0662\u0663", "\u00bd\u00b2\u2167", "3,000.00",
    "I'm you'll WE'RE they'Ve it'S o'clock '' 'x", "'s 't 're", "don\u2019t", "a-b_c/d\\e", "!!!???...", "$5 #1 @x ~`^|",
    "a" * 101, "ab" * 60, "x" * 40 + " " * 40 + "y", "word" + "\u0301" * 20, "\U0001f600" * 8, "\u4e2d" * 20,
    "<s>", "</s>", "<unk>", "[CLS]", "[SEP][PAD]", " [MASK] ", "[mask]", "<|endoftext|>", "a<|endoftext|> b", "<|begin_of_text|>",
    "<|end_of_text|", "<s> x </s>y", "Hello, World!", "  Hello,  World!  ", "caf\u00e9 na\u00efve Stra\u00dfe", "CAF\u00c9",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440", "\u0645\u0631\u062d\u0628\u0627 123", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "if (a<b) {\n\treturn a;\n}", "x = [1,2,\n  3]\n\n\n", "http://localhost/a?b=c&d=%20", "\u00c3\u00a9", "\u2028line\u2029",
    "\u1680\u180e\u2009\u205f", "\u0085next", "a\u200cb\u200dc", "\u00aa\u00ba\u00b5", "\u2460\u3220", "\u0300 \u0300", "n\u0303 N\u0303o",
]  # fmt: skip


class Draws:
    """Successive numbers of one stream."""

    def __init__(self, stream, count):
        self.values = iter(counter.uniform(7, stream, count).tolist())

    def below(self, n):
        return int(next(self.values) * n)

    def pick(self, items):
        return items[self.below(len(items))]


def training_text():
    """Random words: the first words of a list are the most frequent; three words in four are Latin."""
    draws = Draws("training text", 400_000)
    words = [
        "".join(draws.pick(script.split()) for _ in range(1 + draws.below(4)))
        for script in SCRIPTS
        for _ in range(300 if script in SCRIPTS[:2] else 60)
    ]
    words = [word.capitalize() if draws.below(6) == 0 else word for word in words]
    latin = words[:600]
    lines = [(stored.HERE.parent.parent / "LICENSE").read_text()]
    for _ in range(1200):
        line = ""
        for _ in range(12):
            among = latin if draws.below(4) else words
            line += draws.pick(among[: 1 + draws.below(len(among))]) + draws.pick(SEPARATORS)
            if draws.below(20) == 0:
                line += str(draws.below(100_000)) + " "
        lines.append(line + "\n")
        if draws.below(4) == 0:
            lines.append(draws.pick(CODE))
    return lines


def strings():
    draws = Draws("strings", 10_000)
    out = list(NASTY)
    while len(out) < 300:
        out.append("".join(draws.pick(NASTY)[:30] + draws.pick(["", " ", "", "\n"]) for _ in range(2 + draws.below(5))))
    return out


def with_template(tokenizer, start, end=None):
    """A template: start A end B end, or start A start B if there is no end."""
    single, pair = (f"{start} $A {end}", f"{start} $A {end} $B:1 {end}:1") if end else (f"{start} $A", f"{start} $A {start}:1 $B:1")
    special = [(name, tokenizer.token_to_id(name)) for name in (start, end) if name]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def byte_level(pre_tokenizer, specials, **model):
    """Byte-level BPE; special tokens come after the vocabulary, as in the published files."""
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES - len(specials), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    return tokenizer


def gpt2():
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama3():
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    steps = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer = byte_level(steps, ["<|begin_of_text|>", "<|end_of_text|>"], ignore_merges=True)
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), with_template(tokenizer, "<|begin_of_text|>")]
    )
    return tokenizer


def llama2():
    """As in converted SentencePiece files: spaces are U+2581, unknown characters become bytes."""
    specials = ["<unk>", "<s>", "</s>"]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE)
    everything = specials + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=ENTRIES, special_tokens=everything, show_progress=False)
    trained.train_from_iterator(training_text(), trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab=model["vocab"], merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    tokenizer.post_processor = with_template(tokenizer, "<s>")
    return tokenizer


def gemma():
    """As in Gemma's files: no space is put in front, and runs of new lines and of spaces are tokens of their own, which
    the first merges make."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    runs = ["\n\n", "\n\n\n", SPACE * 2, SPACE * 3, SPACE * 4]
    words = ["<table>"]
    spaces = normalizers.Replace(" ", SPACE)
    trained = Tokenizer(models.BPE())
    trained.normalizer = spaces
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never")
    everything = specials + runs + words + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=ENTRIES_OF["gemma"], special_tokens=everything, show_progress=False)
    trained.train_from_iterator(training_text(), trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [(run[:i], run[i:]) for run in runs for i in range(1, len(run))]
    merges += [tuple(pair) for pair in model["merges"] if tuple(pair) not in merges]
    tokenizer = Tokenizer(
        models.BPE(vocab=model["vocab"], merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = spaces
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in runs + words])
    tokenizer.post_processor = with_template(tokenizer, "<bos>")
    return tokenizer


def bert():
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    steps = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = steps
    # Characters inside words would get ids in random order, unless they are listed.
    inside = sorted({"##" + char for line in training_text() for char in steps[0].normalize_str(line) if not char.isspace()})
    trainer = trainers.WordPieceTrainer(vocab_size=ENTRIES, special_tokens=specials + inside, show_progress=False)
    trained.train_from_iterator(training_text(), trainer)
    tokenizer = Tokenizer(models.WordPiece(vocab=trained.get_vocab(), unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = steps
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    tokenizer.post_processor = with_template(tokenizer, "[CLS]", "[SEP]")
    return tokenizer


def replacements():
    """Rules for SentencePiece's normalizer: NFKC of the characters and clusters of the strings; no control characters."""
    texts = "".join(strings()) + "".join(training_text())
    pairs = {a + b for a, b in zip(texts, texts[1:]) if unicodedata.combining(b)}
    rules = {text: to for text in set(texts) | pairs if (to := unicodedata.normalize("NFKC", text)) != text}
    rules |= {text: " " for text in ("\t", "\n", "\r", "\u200b", "\u2028", "\u0085", "\ufeff")}
    rules |= {text: "" for text in ("\u0001", "\u0002", "\u001f", "\u007f", "\u0080", "\u00ad", "\u200e")}
    numbers = [["%X" % ord(c) for c in text] for rule in sorted(rules.items()) for text in rule]
    lines = [" ".join(a) + "\t" + " ".join(b) + "\n" for a, b in zip(numbers[::2], numbers[1::2])]
    return "".join(lines)


def xlm_roberta():
    """Unigram, with the ids of the special tokens of fairseq. Scores have two digits, so that sums are equal at times."""
    with tempfile.TemporaryDirectory() as folder:
        rules, prefix = pathlib.Path(folder, "rules.tsv"), pathlib.Path(folder, "spm")
        rules.write_text(replacements())
        SentencePieceTrainer.train(
            sentence_iterator=iter(training_text()), model_prefix=prefix, vocab_size=ENTRIES_OF["xlm-roberta"] - 2,
            normalization_rule_tsv=rules, num_threads=1, character_coverage=0.999, minloglevel=2,
        )  # fmt: skip
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString(prefix.with_suffix(".model").read_bytes())
    vocab = [(text, 0.0) for text in ("<s>", "<pad>", "</s>", "<unk>")]
    vocab += [(entry.piece, round(entry.score, 2)) for entry in model.pieces[3:]] + [("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=3))
    tokenizer.normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE)])
    tokenizer.decoder = decoders.Metaspace(SPACE)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text, _ in vocab[:4]])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    tokenizer.post_processor = with_template(tokenizer, "<s>", "</s>")
    return tokenizer


CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD_START = r"[^\r\n\p{L}\p{N}]?"
# Letters that may begin and that may continue a word in "CamelCase".
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def words(letters, numbers, line_ends=r"[\r\n]*"):
    return rf"{letters}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+{line_ends}|\s*[\r\n]+|\s+(?!\S)|\s+"


def camel_words(numbers, end):
    letters = f"{WORD_START}{UPPER}*{LOWER}+{end}|{WORD_START}{UPPER}+{LOWER}*{end}"
    return words(letters, numbers, r"[\r\n/]*")


def byte_level_split(pattern, behavior="isolated", invert=False):
    steps = [pre_tokenizers.Split(Regex(pattern), behavior, invert), pre_tokenizers.ByteLevel(False, use_regex=False)]
    return pre_tokenizers.Sequence(steps)


def families():
    """By name: normalizer, pre-tokenizer, and the tokenizers whose vocabularies they are tried with."""
    plain = rf"{CONTRACTIONS}|{WORD_START}\p{{L}}+"
    each_digit = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    of_bytes = ["gpt2", "llama3"]
    return {
        "qwen2": (normalizers.NFC(), byte_level_split(words(plain, r"\p{N}")), of_bytes),
        "smollm2": (None, each_digit, of_bytes),
        "olmo2": (None, byte_level_split(words(plain, r"\p{N}{1,3}"), "removed", invert=True), of_bytes),
        "mistral-nemo": (None, byte_level_split(camel_words(r"\p{N}", "")), of_bytes),
        "phi4-mini": (None, byte_level_split(camel_words(r"\p{N}{1,3}", CONTRACTIONS + "?")), of_bytes),
        "mistral-v0.3": (None, pre_tokenizers.Metaspace(SPACE, "first", split=False), ["llama2"]),
        "llama-of-transformers-5": (None, pre_tokenizers.Metaspace(SPACE, "always", split=False), ["llama2"]),
    }


def family(name, normalizer, pre_tokenizer, base, tokenizer, texts):
    """The steps, and [number of the string, ids] where the ids are not those of `tokenizer`. Words that are tokens get
    no special treatment (`ignore_merges` is false), unlike in llama3."""
    whole = json.loads(tokenizer.to_str())
    whole["normalizer"], whole["model"]["ignore_merges"] = None, False
    own = Tokenizer.from_str(json.dumps(whole))
    if normalizer:
        own.normalizer = normalizer
    own.pre_tokenizer = pre_tokenizer
    steps = json.loads(own.to_str())
    ids = [[t.encode(text, add_special_tokens=False).ids for text in texts] for t in (own, tokenizer)]
    different = [[i, mine] for i, (mine, theirs) in enumerate(zip(*ids)) if mine != theirs]
    return {"name": name, "base": base, "normalizer": steps["normalizer"], "pre_tokenizer": steps["pre_tokenizer"],
            "different": different}


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    """A protobuf field: a number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def sentencepiece_model(tokenizer):
    """A BPE ModelProto (sentencepiece_model.proto): later entries have lower scores."""
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    out = b""
    for piece, i in vocab:
        kind = 2 if i == 0 else 3 if i < 3 else 6 if i < 259 else 1  # unknown, control, byte, normal
        score = struct.pack("<f", 0.0 if i < 259 else 259.0 - i)
        out += field(1, field(1, piece.encode()) + varint(2 << 3 | 5) + score + field(3, kind))
    out += field(2, field(3, 2) + field(4, len(vocab)) + field(35, 1))  # trained as BPE, with bytes for the unknown
    return out + field(3, field(1, b"identity") + field(3, 1) + field(4, 0) + field(5, 1))


def with_sentencepiece(rows, model, texts):
    library = SentencePieceProcessor(model_proto=model)
    for row, text in zip(rows, texts):
        ids = library.encode(text)
        decoded = library.decode(ids)
        row["spm"] = "same" if ids == row["ids"] else ids
        row["spm_decoded"] = "same" if decoded == row.get("decoded", text) else decoded
        yield row


def answers(tokenizer, texts):
    for i, text in enumerate(texts):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        special = tokenizer.encode(text).ids
        at = next(k for k in range(len(special) - len(ids) + 1) if special[k : k + len(ids)] == ids)
        around = special[:at] + ["...ids"] + special[at + len(ids) :]
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        yield {"i": i, "ids": ids, "ids_special": around} | ({"decoded": decoded} if decoded != text else {})


# tokenizer, pad token, side, padding, truncation, longest sequence, pairs
BATCHES = [
    ("gpt2", "<|endoftext|>", "right", True, True, 16, False),
    ("gpt2", "<|endoftext|>", "right", True, True, 40, False),
    ("gpt2", "<|endoftext|>", "right", True, True, 200, False),
    ("gpt2", "<|endoftext|>", "left", True, False, 0, False),
    ("gpt2", "<|endoftext|>", "right", "max_length", True, 12, False),
    ("bert", "[PAD]", "right", True, True, 24, False),
    ("bert", "[PAD]", "right", "max_length", True, 32, False),
    ("bert", "[PAD]", "right", True, "longest_first", 20, True),
    ("bert", "[PAD]", "right", True, "only_second", 40, True),
]
FIRST = ["Hello, world", "Redistribution of derivative works", "caf\u00e9", "a b c d e f g h"]
SECOND = ["You may obtain a copy of the License at any time, " * 2, "x", "\u4f60\u597d, 123", "e\u0301 " * 12]


def batch(tokenizer, row):
    name, pad, side, padding, truncation, longest, paired = row
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    options = {}
    if padding:
        length = longest if padding == "max_length" else None
        tokenizer.enable_padding(direction=side, pad_id=tokenizer.token_to_id(pad), pad_token=pad, length=length)
        options["padding"] = padding
    if truncation:
        strategy = truncation if isinstance(truncation, str) else "longest_first"
        tokenizer.enable_truncation(longest, strategy=strategy)
        options |= {"truncation": "only_second" if truncation == "only_second" else True, "max_length": longest}
    pairs = SECOND if paired else None
    rows = tokenizer.encode_batch(list(zip(FIRST, SECOND)) if paired else FIRST)
    expect = {"input_ids": [r.ids for r in rows], "attention_mask": [r.attention_mask for r in rows]}
    if name == "bert":
        expect["token_type_ids"] = [r.type_ids for r in rows]
    return {
        "tokenizer": name, "texts": FIRST, "pairs": pairs, "padding_side": side, "options": options, "expect": expect,
    }  # fmt: skip


def prefixes(tokenizer, name, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    decoded = [tokenizer.decode(ids[: k + 1], skip_special_tokens=False) for k in range(len(ids))]
    return {"tokenizer": name, "text": text, "ids": ids, "prefix_decoded": decoded}


def main():
    texts = strings()
    made = {"gpt2": gpt2(), "llama2": llama2(), "llama3": llama3(), "bert": bert(), "gemma": gemma()}
    made["xlm-roberta"] = xlm_roberta()
    HERE.mkdir(exist_ok=True)
    stored.put_lines(HERE / "strings.jsonl", [{"i": i, "text": text} for i, text in enumerate(texts)])
    for name, tokenizer in made.items():
        entries = ENTRIES_OF.get(name, ENTRIES)
        assert tokenizer.get_vocab_size() == entries, (name, tokenizer.get_vocab_size())
        (HERE / name).mkdir(exist_ok=True)
        stored.put_json(HERE / name / "tokenizer.json", json.loads(tokenizer.to_str()))
        rows = answers(tokenizer, texts)
        if name == "llama2":
            model = sentencepiece_model(tokenizer)
            stored.put_bytes(HERE / name / "tokenizer.model", model)
            rows = with_sentencepiece(rows, model, texts)
        stored.put_lines(HERE / f"{name}.jsonl", rows)
    stored.put_json(
        HERE / "families.json",
        [family(name, *steps, base, made[base], texts) for name, (*steps, bases) in families().items() for base in bases],
    )
    # ByteFallback decodes an unfinished run of bytes to one U+FFFD, so no two runs are adjacent.
    streams = ["No\u00ebl \U0001f600 \u4f60\u597d na\u00efve", "\U0001f468 a\U0001f469b\U0001f466 family"]
    stored.put_json(
        HERE / "batch.json",
        {
            "batch": [batch(made[row[0]], row) for row in BATCHES],
            "prefix_decode": [prefixes(made[name], name, text) for name in made for text in streams],
        },
    )


main()
