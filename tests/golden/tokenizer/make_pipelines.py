"""Writes pipelines.json: results of the `tokenizers` library for small tokenizers with every kind of step."""

import json

import tokenizers
from tokenizers import Tokenizer

M = "\u2581"
chars = [chr(c) for c in range(33, 127)] + [
    M,
    "\u00e9",
    "\u00df",
    "\u4f60",
    "\u597d",
    "\u0627",
    "\u0430",
    "\u0130",
    "\u0308",
    "e",
    "\ufb01",
    "\u00bd",
    "\uff21",
    " ",
    "\u0120",
    "\u010a",
    "\u00c3",
    "\u00a9",
    "\u0142",
]


def vocab(extra=()):
    v = {}
    for t in ["<unk>", "<s>", "</s>"] + chars + list(extra):
        if t not in v:
            v[t] = len(v)
    return v


words = [
    "th",
    "the",
    "in",
    "ing",
    "he",
    "llo",
    "hello",
    "wor",
    "ld",
    "world",
    "12",
    "23",
    "123",
    M + "t",
    M + "th",
    M + "the",
    M + "h",
    M + "w",
    "\u0120t",
    "\u0120th",
    "\u0120the",
    "\u0120h",
]
merges = [
    ["t", "h"],
    ["th", "e"],
    ["i", "n"],
    ["in", "g"],
    ["h", "e"],
    ["l", "l"],
    ["ll", "o"],
    ["he", "llo"],
    ["w", "o"],
    ["wo", "r"],
    ["l", "d"],
    ["wor", "ld"],
    ["1", "2"],
    ["2", "3"],
    ["12", "3"],
    [M, "t"],
    [M + "t", "h"],
    [M + "th", "e"],
    [M, "h"],
    [M, "w"],
    ["\u0120", "t"],
    ["\u0120t", "h"],
    ["\u0120th", "e"],
    ["\u0120", "h"],
]
ext = sorted(set(["".join(m) for m in merges]))


def bpe(**k):
    m = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab(ext),
        "merges": merges,
    }
    m.update(k)
    return m


V = vocab(ext)


def tok(model=None, normalizer=None, pre=None, post=None, dec=None, added=None):
    a = [
        {
            "id": i,
            "content": c,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, c in enumerate(["<unk>", "<s>", "</s>"])
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": a + (added or []),
        "normalizer": normalizer,
        "pre_tokenizer": pre,
        "post_processor": post,
        "decoder": dec,
        "model": model or bpe(),
    }


N = len(V)


def add(i, c, **k):
    d = {
        "id": N + i,
        "content": c,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }
    d.update(k)
    return d


P = {}
for b in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
    P["split " + b] = tok(pre={"type": "Split", "pattern": {"String": " "}, "behavior": b, "invert": False})
    P["split regex " + b] = tok(pre={"type": "Split", "pattern": {"Regex": "[,.]|\\d"}, "behavior": b, "invert": False})
    P["split invert " + b] = tok(pre={"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": b, "invert": True})
    P["punctuation " + b] = tok(pre={"type": "Punctuation", "behavior": b})
P["split special chars"] = tok(
    pre={"type": "Split", "pattern": {"String": "."}, "behavior": "Isolated", "invert": False}
)
P["whitespace"] = tok(pre={"type": "Whitespace"})
P["whitespace split"] = tok(pre={"type": "WhitespaceSplit"})
P["bert pre"] = tok(pre={"type": "BertPreTokenizer"})
P["digits"] = tok(pre={"type": "Digits", "individual_digits": False})
P["digits individual"] = tok(pre={"type": "Digits", "individual_digits": True})
for s in ["always", "first", "never"]:
    for sp in [True, False]:
        ms = {"type": "Metaspace", "replacement": M, "prepend_scheme": s, "split": sp}
        P[f"metaspace {s} {sp}"] = tok(
            pre=ms,
            dec={"type": "Metaspace", "replacement": M, "prepend_scheme": s, "split": sp},
            added=[add(0, "<x>", special=True)],
        )
P["byte level"] = tok(
    pre={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    dec={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    post={
        "type": "RobertaProcessing",
        "sep": ["</s>", 2],
        "cls": ["<s>", 1],
        "trim_offsets": True,
        "add_prefix_space": True,
    },
)
P["byte level no regex"] = tok(
    pre={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False},
    dec={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    post={"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]},
)
P["sequence"] = tok(
    pre={
        "type": "Sequence",
        "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Digits", "individual_digits": True},
            {"type": "Punctuation", "behavior": "Isolated"},
        ],
    }
)
for f in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"]:
    P[f] = tok(normalizer={"type": f}, pre={"type": "WhitespaceSplit"})
P["NFD accents"] = tok(
    normalizer={"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]},
    pre={"type": "WhitespaceSplit"},
)
for l in [True, False]:
    for r in [True, False]:
        P[f"strip {l} {r}"] = tok(normalizer={"type": "Strip", "strip_left": l, "strip_right": r})
P["prepend replace"] = tok(
    normalizer={
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": M},
            {"type": "Replace", "pattern": {"String": " "}, "content": M},
            {"type": "Replace", "pattern": {"Regex": "l+"}, "content": "l"},
        ],
    },
    dec={
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": M}, "content": " "},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
)
for c in [True, False]:
    for z in [True, False]:
        for a in [True, False, None]:
            for lo in [True, False]:
                P[f"bert {c} {z} {a} {lo}"] = tok(
                    normalizer={
                        "type": "BertNormalizer",
                        "clean_text": c,
                        "handle_chinese_chars": z,
                        "strip_accents": a,
                        "lowercase": lo,
                    },
                    pre={"type": "BertPreTokenizer"},
                )
P["fuse unk"] = tok(model=bpe(fuse_unk=True))
P["no unk"] = tok(model=bpe(unk_token=None))
P["ignore merges"] = tok(model=bpe(ignore_merges=True), pre={"type": "WhitespaceSplit"})
hexes = {f"<0x{i:02X}>": len(V) + i for i in range(256)}
P["byte fallback"] = tok(
    model=bpe(byte_fallback=True, vocab={**V, **hexes}),
    dec={"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
)
part = {k: v for k, v in hexes.items() if k < "<0xC0>"}
P["some byte fallback"] = tok(
    model=bpe(byte_fallback=True, fuse_unk=True, vocab={**V, **part}),
    dec={"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
)
ev = {"<unk>": 0, "<s>": 1, "</s>": 2}
for t in list("thewrld") + [c + "</w>" for c in "thewrld"] + ["th", "the</w>", "he</w>", "wo", "o", "o</w>"]:
    ev.setdefault(t, len(ev))
P["end of word"] = tok(
    model={
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": "</w>",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": ev,
        "merges": [["t", "h"], ["h", "e</w>"], ["th", "e</w>"], ["w", "o"]],
    },
    pre={"type": "Whitespace"},
    dec={"type": "BPEDecoder", "suffix": "</w>"},
)
cv = {"<unk>": 0, "<s>": 1, "</s>": 2}
for t in list("thewrldo") + ["##" + c for c in "thewrldo"] + ["th", "the", "##he", "wo", "##ld", "wor"]:
    cv.setdefault(t, len(cv))
P["continuing prefix"] = tok(
    model={
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": "##",
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": cv,
        "merges": [["t", "##h"], ["th", "##e"], ["##h", "##e"], ["w", "##o"], ["##l", "##d"], ["wo", "##r"]],
    },
    pre={"type": "Whitespace"},
    dec={"type": "WordPiece", "prefix": "##", "cleanup": True},
)
wp = {"<unk>": 0, "<s>": 1, "</s>": 2}
for t in (
    list("thewrldo.,!?'") + ["##" + c for c in "thewrldoing"] + ["the", "hello", "##ing", "do", "not", "n't", "'s"]
):
    wp.setdefault(t, len(wp))
for cl in [True, False]:
    P[f"word piece {cl}"] = tok(
        model={
            "type": "WordPiece",
            "unk_token": "<unk>",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 8,
            "vocab": wp,
        },
        pre={"type": "Whitespace"},
        dec={"type": "WordPiece", "prefix": "##", "cleanup": cl},
        post={
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "two", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                "two": {"id": "two", "ids": [2, 2], "tokens": ["</s>", "</s>"]},
            },
        },
    )
P["added"] = tok(
    normalizer={"type": "Lowercase"},
    added=[
        add(0, "<l>", lstrip=True),
        add(1, "<r>", rstrip=True),
        add(2, "<b>", lstrip=True, rstrip=True),
        add(3, "word", single_word=True),
        add(4, "Norm", normalized=True),
        add(5, "Exact", normalized=False),
        add(6, "<l><r>"),
        add(7, "aa", special=True),
    ],
)
P["added white space"] = tok(
    added=[
        add(0, "  "),
        add(1, "ng,", rstrip=True),
        add(2, "\n\t", lstrip=True),
    ]
)
P["added metaspace first"] = tok(
    pre={"type": "Metaspace", "replacement": M, "prepend_scheme": "first", "split": True},
    added=[add(0, "<x>", lstrip=True)],
)
texts = [
    "",
    "hello world",
    "  the thing,  123 the\n\tworld. ",
    "The hello's don't HELLO",
    "12,345.67!?",
    "a<x>the<x> hello",
    "\u0130stanbul \u00e9 \u00df \u4f60\u597d \ufb01\u00bd\uff21",
    "e\u0301\u0308x \u00a0y\u2003z",
    "x <l> y <r> z <b> w<l><r>q <l> <r> end",
    "sword word words word, (word) Norm norm NORM Exact exact",
    "aaaa aa baab",
    "th_the3the the-the",
    "\u2581hello\u2581 \u2581\u2581",
    "\u4f60 \u597dthe\u4f60",
    "<s>hello</s> <unk>",
    "\x00a\x01b\x7f\u200bc\ufffd",
    "do not worry , he 's here . ' ok",
    "supercalifragilistic the",
    "   ",
    "...",
    "the\u0301 the",
]
out = []
for name, t in P.items():
    try:
        k = Tokenizer.from_str(json.dumps(t))
    except BaseException as e:
        print("SKIP", name, e)
        continue
    cases = []
    for x in texts:
        try:
            e = k.encode(x, add_special_tokens=False)
            s = k.encode(x)
            c = {"text": texts.index(x), "ids": e.ids, "decoded": k.decode(e.ids, skip_special_tokens=False)}
            p = k.decode(s.ids, skip_special_tokens=True)
            if s.ids != e.ids:
                c["ids_special"] = s.ids
            if p != c["decoded"]:
                c["decoded_plain"] = p
            cases.append(c)
        except BaseException as ex:
            print("ERR", name, repr(x), ex)
    t = json.loads(json.dumps(t))
    out.append({"name": name, "tokenizer": t, "cases": cases})
# vocabularies repeat, so each is stored once, under a name
vocabs = []
for o in out:
    m = o["tokenizer"]["model"]
    key = [m["vocab"], m.get("merges")]
    if key not in vocabs:
        vocabs.append(key)
    m["vocab"] = vocabs.index(key)
    m.pop("merges", None)
# so do answers
answers = []
for o in out:
    for case in o["cases"]:
        if case not in answers:
            answers.append(case)
    o["cases"] = [answers.index(case) for case in o["cases"]]
json.dump(
    {
        "made_with": "tokenizers " + tokenizers.__version__,
        "vocabularies": [{"vocab": v, "merges": m} for v, m in vocabs],
        "texts": texts,
        "answers": answers,
        "pipelines": out,
    },
    open("pipelines.json", "w"),
    ensure_ascii=True,
    separators=(",", ":"),
)
print(len(out), len(texts))
