"""Manual pages from the program's help: cleave.1 and a page per command, cleave-train.1, cleave-bench-train.1."""
import datetime
import os
import re

from stage import output

WIDE = {**os.environ, "COLUMNS": "10000"}  # help without line breaks
ROW = re.compile(r"  (\S.*?)(?:  +(\S.*))?$")


def escaped(text):
    """Text of one line for roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\\&" + text if text.startswith((".", "'")) else text


def rows(lines):
    """[(name, text)] of the indented lines of a section of help."""
    found = []
    for line in lines:
        match = ROW.match(line)
        if match and not line.startswith("   "):
            found.append([match[1], match[2] or ""])
        else:
            found[-1][1] += " " + line.strip()
    return [(name, text.strip()) for name, text in found]


def page(name, version, date, help_text):
    """The manual page of the help of `name` ("cleave", "cleave bench train")."""
    first, usage, *sections = help_text.strip().split("\n\n")
    summary = first.split(": ", 1)[-1].rstrip(".")
    summary = summary[0].lower() + summary[1:]
    dashed = name.replace(" ", "-")
    out = [f'.TH {escaped(dashed).upper()} 1 "{date}" "Cleave {version}" "Cleave"', ".SH NAME",
           f"{escaped(dashed)} \\- {escaped(summary)}", ".SH SYNOPSIS", escaped(usage.removeprefix("usage: ")), ".SH OPTIONS"]
    for section in sections:
        lines = section.split("\n")
        if not lines[0].startswith(" "):
            out += [".SS " + escaped(lines.pop(0).rstrip(":").capitalize())]
        for flag, text in rows(lines):
            out += [".TP", f".B {escaped(flag)}", escaped(text)]
    if name == "cleave":
        out += [".SH SEE ALSO", "The manual page of a command, as in", ".BR cleave\\-train (1)."]
    else:
        out += [".SH SEE ALSO", ".BR cleave (1)"]
    return "\n".join(out) + "\n"


def commands(help_text):
    """The commands that `cleave --help` lists."""
    section = help_text.split("\n\ncommands:\n")[1].split("\n\n")[0]
    return [name for name, _ in rows(section.split("\n"))]


def write_manual(program, folder, version):
    """Writes the pages of `program` into `folder`."""
    folder.mkdir(parents=True)
    date = datetime.date.fromtimestamp(program.stat().st_mtime).isoformat()  # of the build
    general = output(program, "--help", env=WIDE)
    (folder / "cleave.1").write_text(page("cleave", version, date, general))
    for command in commands(general):
        name = f"cleave {command}"
        text = page(name, version, date, output(program, *command.split(), "--help", env=WIDE))
        (folder / f"{name.replace(' ', '-')}.1").write_text(text)
