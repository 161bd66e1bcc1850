#!/usr/bin/env python3
"""ASCII only; no paths of one machine; links only to a few lasting places; no notes to be done later; no tabs or blanks
at line ends; no file names that say nothing."""
import re
import sys

import cpp_source

# Data of tests is what it is.
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
VAGUE_NAMES = re.compile(r"(^|[/_])(utils?|common|helpers?|misc|manager)(_|\.|/|$)")


def main():
    problems, paths = [], cpp_source.tracked()
    for path in paths:
        if VAGUE_NAMES.search(path):
            problems.append(f"{path}:0: the name says nothing; name the thing inside")
        if EXEMPT.search(path):
            continue
        text = cpp_source.read(path)
        if text and not text.endswith("\n"):
            problems.append(f"{path}:{text.count(chr(10)) + 1}: no newline at the end")
        for number, line in enumerate(text.split("\n"), 1):
            problems += [f"{path}:{number}: {what}" for pattern, what in RULES if pattern.search(line)]
    print("\n".join(problems + [f"check_text: {len(paths)} files, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
