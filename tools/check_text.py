#!/usr/bin/env python3
"""Checks text files: ASCII only; no machine-specific paths; links only to allowed hosts; no notes to be done later; no tabs
or trailing blanks; no vague file names."""
import re
import sys

import cpp_source

# Test data.
EXEMPT = re.compile(r"/(golden|corpus)/|\.(safetensors|bin|model|png|svg)$|^LICENSE$")
HOSTS = ("arxiv.org", "www.w3.org", "www.apache.org", "localhost", "127.0.0.1")
RULES = (
    (re.compile(r"[^\x00-\x7f]"), "not ASCII"),
    (re.compile(r"(?<![\w.}~*-])/(work|root|home|mnt|opt|Users|data)(/|\b(?=[\"'\s]))"), "a path of one machine"),
    (re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"), "a note to be done later"),
    (re.compile(r"[ \t\r]+$"), "blanks at the end of the line"),
    (re.compile(r"\t"), "a tab"),
    (re.compile(rf"https?://(?!({'|'.join(re.escape(host) for host in HOSTS)})\b)"),
     f"a link; allowed are {', '.join(HOSTS)}"),
)
# SVG elements.
TERMS = re.compile(r"</?circle")
# They check other words, or quote what another library says.
QUOTING = re.compile(r"^tools/(check_text|search/)|^tests/(hostile|tools)/|^docs/decisions|^LICENSE")


def retired_words():
    """[(pattern, "word -> term")] from the last column of the glossary in CONTRIBUTING.md."""
    if not (cpp_source.ROOT / "CONTRIBUTING.md").exists():  # a test's small tree
        return []
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]*)\|$", cpp_source.read("CONTRIBUTING.md"), re.MULTILINE)
    return [(re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE), f"'{word}' is retired; the glossary says: {term}")
            for term, words in rows for word in re.findall(r'"([^"]+)"', words)]


VAGUE_NAMES = re.compile(r"(^|[/_])(utils?|common|helpers?|misc|manager)(_|\.|/|$)")


def main():
    problems, paths, retired = [], cpp_source.tracked(), retired_words()
    for path in paths:
        if VAGUE_NAMES.search(path):
            problems.append(f"{path}:0: the file name is vague; name its contents")
        if EXEMPT.search(path):
            continue
        text = cpp_source.read(path)
        if text and not text.endswith("\n"):
            problems.append(f"{path}:{text.count(chr(10)) + 1}: no newline at the end")
        for number, line in enumerate(text.split("\n"), 1):
            problems += [f"{path}:{number}: {what}" for pattern, what in RULES if pattern.search(line)]
            if not QUOTING.search(path) and not (path == "CONTRIBUTING.md" and line.startswith("| ")):
                words = TERMS.sub("", line)
                problems += [f"{path}:{number}: {what}" for pattern, what in retired if pattern.search(words)]
    print("\n".join(problems + [f"check_text: {len(paths)} files, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
