"""Doxygen's input filter: a comment's table of shapes, indented by three spaces, keeps its lines. Keeps line numbers."""
import re
import sys


def keep_lines(match):
    lines = match.group().splitlines()
    lines[0] = lines[0].replace("///   ", r"/// \verbatim ", 1)
    lines[-1] += r" \endverbatim"
    return "\n".join(lines) + "\n"


with open(sys.argv[1], encoding="utf-8") as header:
    sys.stdout.write(re.sub(r"(^ *///   \S.*\n(^ *///    *\S.*\n)*)", keep_lines, header.read(), flags=re.MULTILINE))
