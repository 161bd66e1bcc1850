#!/usr/bin/env python3
"""Writes cleave/tokenizer/unicode_tables.cc and tests/golden/tokenizer/unicode.json.

Both describe what the Python package `tokenizers` (its version is in both files) does with every
character: the first as tables, the second as checksums of its output, for the test.
"""
import json
import pathlib
import tempfile
import zlib

import sentencepiece
import tokenizers
from tokenizers import Regex
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
from sentencepiece import sentencepiece_model_pb2

ROOT = pathlib.Path(__file__).resolve().parent.parent
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cn "
              "Co Cs").split()
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcd"  # codes of CATEGORIES in the runs
CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def matched(pattern):
    """Characters that Oniguruma, which Split and ByteLevel use, matches."""
    gone = N.Replace(Regex(pattern), "")
    return {c for c in CHARACTERS if gone.normalize_str(chr(c)) == ""}


def cut_at(pre_tokenizer):
    return {c for c in CHARACTERS if len(pre_tokenizer.pre_tokenize_str(f"a{chr(c)}b")) > 1}


def dropped_by(normalizer):
    return {c for c in CHARACTERS if normalizer.normalize_str(f"a{chr(c)}b") == "ab"}


def bert(**steps):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return N.BertNormalizer(**{**off, **steps})


def precompiled(characters):
    """A normalizer that replaces each of these characters by X."""
    with tempfile.TemporaryDirectory() as folder:
        rules, model = pathlib.Path(folder, "rules.tsv"), pathlib.Path(folder, "model")
        rules.write_text("".join(f"{c:X}\t58\n" for c in sorted(characters)))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["Y"]), model_prefix=model, vocab_size=8, hard_vocab_limit=False,
            normalization_rule_tsv=rules, minloglevel=2)
        read = sentencepiece_model_pb2.ModelProto()
        read.ParseFromString(model.with_suffix(".model").read_bytes())
    return N.Precompiled(read.normalizer_spec.precompiled_charsmap)


def clusters():
    """Characters that join the one before them; that the one after them joins; that stay alone, below U+10000.

    Precompiled replaces a short cluster as a whole if it begins with an entry of its table.
    """
    basic = [c for c in CHARACTERS if 0 < c < 0x10000 and c not in (0x301, ord("X"))]
    replaced = precompiled(basic)
    only_a = precompiled([ord("a")])
    joined = {c for c in CHARACTERS if only_a.normalize_str("a" + chr(c)) == "X"}
    alone = {c for c in basic if c not in joined
             and replaced.normalize_str(chr(c) + "\u0301") == "X\u0301"}
    joining = {c for c in CHARACTERS if c not in joined and c not in alone
               and only_a.normalize_str(chr(c) + "a\u0301") == chr(c) + "X\u0301"}
    return joined, joining, alone | {0}


def category_runs():
    of = {}
    for name in CATEGORIES[:-1]:
        for c in matched(r"\p{%s}" % name):
            assert c not in of, (c, name, of[c])
            of[c] = name
    runs = []
    for c in range(0x110000):
        name = of.get(c, "Cs")
        if runs and runs[-1][0] == name:
            runs[-1][1] += 1
        else:
            runs.append([name, 1])
    return "".join(
        LETTERS[CATEGORIES.index(n)] + (str(count) if count > 1 else "") for n, count in runs)


def set_runs(members):
    """Alternating numbers of characters outside and inside the set, from U+0000 on."""
    counts, inside = [0], False
    for c in range(max(members) + 1):
        if (c in members) != inside:
            counts.append(0)
            inside = not inside
        counts[-1] += 1
    return " ".join(map(str, counts))


def lower_runs():
    """First, last, step and difference of runs of characters whose lower-case form is one other character."""
    lower = N.Lowercase()
    runs = []
    for c in CHARACTERS:
        to = lower.normalize_str(chr(c))
        if len(to) != 1 or to == chr(c):
            assert len(to) == 1 or c == 0x130, c  # the only one with two characters; see unicode.cc
            continue
        delta = ord(to) - c
        if runs and runs[-1][3] == delta and c - runs[-1][1] in (1, 2):
            first, last, step, _ = runs[-1]
            if first == last or c - last == step:
                runs[-1] = [first, c, c - last, delta]
                continue
        runs.append([c, c, 1, delta])
    return "  ".join(" ".join(map(str, run)) for run in runs)


def literal(name, comment, text):
    lines, width = [], 94
    while text:
        lines.append(text[:width])
        text = text[width:]
    body = "\n".join(f'    "{line}"' for line in lines)
    return f"// {comment}\nconst std::string_view {name} =\n{body};\n"


def write_tables():
    joined, joining, alone = clusters()
    tables = [
        literal("kCategoryRuns", "As in Oniguruma: a letter for the category, then the number of "
                "characters.", category_runs()),
        literal("kPunctuationRuns", "BertPreTokenizer and Punctuation split here.",
                set_runs(cut_at(P.Punctuation()))),
        literal("kNumberRuns", "Digits splits here.", set_runs(cut_at(P.Digits()))),
        literal("kDroppedRuns", "BertNormalizer's clean_text removes these.",
                set_runs(dropped_by(bert(clean_text=True)))),
        literal("kAccentRuns", "BertNormalizer's strip_accents removes these.",
                set_runs(dropped_by(bert(strip_accents=True)))),
        literal("kMarkRuns", "StripAccents removes these.", set_runs(dropped_by(N.StripAccents()))),
        literal("kJoinedRuns", "These are in one cluster with the character before them.",
                set_runs(joined)),
        literal("kJoiningRuns", "These are in one cluster with the character after them.",
                set_runs(joining)),
        literal("kAloneRuns", "These are a cluster of their own.", set_runs(alone)),
        literal("kLowerRuns", "First, last, step and the difference to the lower-case form.",
                lower_runs()),
    ]
    head = ("// Made by tools/make_unicode_tables.py from tokenizers " + tokenizers.__version__ +
            "; do not edit.\n// clang-format off\n"
            '#include "cleave/tokenizer/unicode.h"\n\nnamespace cleave::inline tokenizer {\n\n')
    path = ROOT / "cleave/tokenizer/unicode_tables.cc"
    path.write_text(head + "\n".join(tables) + "\n}  // namespace cleave::inline tokenizer\n")


def ranges_of(members):
    found = []
    for c in sorted(members):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def set_checksum(members):
    text = "".join(f"{first:x}-{last:x} " for first, last in ranges_of(members))
    return zlib.crc32(text.encode())


def map_checksum(changed):
    """Checksum of the changed characters and the texts that they become."""
    text = "".join(f"{c:x} {changed[c]}\n" for c in sorted(changed))
    return zlib.crc32(text.encode())


def changed_by(normalizer):
    return {c: t for c in CHARACTERS if (t := normalizer.normalize_str(chr(c))) != chr(c)}


def write_golden(sets, maps):
    sums = {name: set_checksum(members) for name, members in sets.items()}
    sums.update({name: map_checksum(changed) for name, changed in maps.items()})
    path = ROOT / "tests/golden/tokenizer/unicode.json"
    lines = ",\n".join(f"  {json.dumps(name)}: {value}" for name, value in sums.items())
    path.write_text(f'{{"tokenizers": "{tokenizers.__version__}", "checksums": {{\n{lines}\n}}}}\n')


def measure_golden():
    sets = {
        "white space": cut_at(P.WhitespaceSplit()),
        "punctuation": cut_at(P.Punctuation()),
        "number": cut_at(P.Digits()),
        "word": set(CHARACTERS) - cut_at(P.Whitespace()),
        "dropped": dropped_by(bert(clean_text=True)),
        "mark": dropped_by(N.StripAccents()),
        "chinese": set(changed_by(bert(handle_chinese_chars=True))),
    }
    sets["joined"], sets["joining"], sets["alone"] = clusters()
    for pattern in ("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "Nd", "Nl", "No", "P", "S", "Z"):
        sets[r"\p{%s}" % pattern] = matched(r"\p{%s}" % pattern)
    for pattern in (r"\s", r"\w", r"\d"):
        sets[pattern] = matched(pattern)
    maps = {"accents": changed_by(bert(strip_accents=True)), "lower": changed_by(N.Lowercase())}
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        maps[form] = changed_by(getattr(N, form)())
    return sets, maps


if __name__ == "__main__":
    write_tables()
    write_golden(*measure_golden())
