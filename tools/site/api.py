"""The API reference: Markdown pages from Doxygen's XML of the public headers, one page per folder of cleave/."""
import html
import pathlib
import posixpath
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as xml

import check_docs
import cpp_source
from pages import API, SiteError

WIDTH = 80
# In prose, Layer may be any layer, and World begins a sentence; these are names for certain.
IS_NAME = re.compile(r"[a-z][A-Z]|::|\(|_|Options$|^DTensor$")
FILTER = pathlib.Path(__file__).with_name("comment_filter.py")
OPTIONS = """
PROJECT_NAME = Cleave
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
QUIET = YES
JAVADOC_AUTOBRIEF = NO
SORT_MEMBER_DOCS = NO
AUTOLINK_SUPPORT = YES
MACRO_EXPANSION = NO
EXCLUDE_SYMBOLS = *::internal *::detail
"""


def includes(path):
    found = re.findall(r'^#include "(cleave/[^"]+)"', cpp_source.read(path), re.MULTILINE)
    return [there for there in found if (cpp_source.ROOT / there).exists()]


def public_headers():
    """(headers of cleave.h and of the table in docs/library.md, headers that these include in turn)."""
    page = cpp_source.read("docs/library.md")
    table = re.findall(r"^\| (`[^|]+\.h`) \|", page, re.MULTILINE)
    listed = [f"cleave/{name}" for cell in table for name in re.findall(r"`([\w/]+\.h)`", cell)]
    named = list(dict.fromkeys(path for path in includes(API) + listed if path != API))
    reached, pending = dict.fromkeys(named), list(named)
    while pending:
        for path in includes(pending.pop()):
            if path not in reached:
                reached[path] = None
                pending.append(path)
    return sorted(named), sorted(set(reached) - set(named))


def run_doxygen(headers, folder):
    """Returns the XML's root elements. Doxygen's warnings are errors, but for those about missing comments: the rule for
    these is check_docs.py's, by which e.g. a struct's comment covers its fields. Structs named XOptions need none."""
    folder.mkdir(parents=True, exist_ok=True)
    config = f"{OPTIONS}INPUT = {' '.join(headers)}\n"
    for name, value in (("OUTPUT_DIRECTORY", folder), ("STRIP_FROM_PATH", cpp_source.ROOT),
                        ("INPUT_FILTER", f"{sys.executable} -S {FILTER}")):
        config += f'{name} = "{value}"\n'
    run = subprocess.run(["doxygen", "-"], cwd=cpp_source.ROOT, input=config, capture_output=True, text=True)
    warnings = [line.replace(f"{cpp_source.ROOT}/", "") for line in run.stderr.splitlines() if line.strip()]
    problems = [line for line in warnings
                if not re.search(r"Member .* is not documented|Compound \S*Options is not documented", line)]
    problems += [problem for path in headers for problem in check_docs.check_header(path)]
    if run.returncode != 0 or problems:
        raise SiteError("\n".join(["doxygen:"] + problems))
    return [xml.parse(path).getroot() for path in sorted((folder / "xml").glob("*.xml"))]


def plain(element):
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def code_text(text):
    """C++ as it is written, from Doxygen's spacing."""
    text = re.sub(r"\s*([&*]+)\s*(?=\w|,|\)|$|>)", lambda m: f"{m.group(1)} ", text)
    text = re.sub(r"< ", "<", re.sub(r" >", ">", text))
    text = re.sub(r"([&*]) (?=[,)>]|$)", r"\1", text)
    return re.sub(r" +", " ", text).replace(" &...", "&...").replace("cleave::", "").strip()


def wrapped(signature, indent=""):
    """A long signature, broken after commas."""
    lines = textwrap.wrap(re.sub(r"(?<!,) ", "\0", signature), WIDTH - len(indent), break_long_words=False,
                          break_on_hyphens=False, subsequent_indent="    ")
    return "\n".join(indent + line.replace("\0", " ") for line in lines)


def commented(declaration, comment, indent="  "):
    """A declaration with its comment next to it, or above it where the line would be too long."""
    line = indent + declaration
    if not comment:
        return line
    if "\n" not in comment and len(line) + len(comment) + 5 <= WIDTH:
        return f"{line}  // {comment}"
    above = textwrap.wrap(comment, WIDTH - len(indent) - 3, break_long_words=False, break_on_hyphens=False)
    return "\n".join([f"{indent}// {text}" for text in above] + [line])


class Item:
    """A member or type."""

    def __init__(self, element, owner):
        self.element, self.owner = element, owner
        self.kind = element.get("kind")
        name = element.find("compoundname") if element.find("compoundname") is not None else element.find("name")
        self.name = plain(name)
        place = element.find("location")
        self.file, self.line = place.get("file"), int(place.get("line"))
        self.end = max(self.line, int(place.get("bodyend") or -1)) if self.kind in ("function", "enum") else self.line
        self.protected = element.get("prot") == "protected"

    def is_documented(self):
        return bool(plain(self.element.find("briefdescription")) or plain(self.element.find("detaileddescription")))

    def is_getter(self):
        return self.kind == "function" and plain(self.element.find("argsstring")).startswith("() const")

    def comment(self):
        parts = [plain(self.element.find(f"{which}description")) for which in ("brief", "detailed")]
        return " ".join(part for part in parts if part)

    def anchor(self):
        name = f"{self.owner}::{self.name}" if self.owner else self.name
        return re.sub(r"[^\w-]+", "-", name.replace("cleave::", "").replace("operator", "operator-")).strip("-").lower()

    def declaration(self):
        get = lambda name: plain(self.element.find(name))  # noqa: E731
        if self.kind == "define":
            names = [plain(param) for param in self.element.findall("param")]
            return f"#define {self.name}" + (f"({', '.join(names)})" if names else "")
        if self.kind == "enum":
            return self.enumeration()
        if self.kind == "typedef":
            return code_text(f"using {self.name} = {get('type')};")
        template = self.element.find("templateparamlist")
        head = ""
        if template is not None:
            names = [" ".join(filter(None, (plain(p.find("type")), plain(p.find("declname")))))
                     for p in template.findall("param")]
            head = f"template <{', '.join(names)}> "
        words = [word for word, key in (("static", "static"), ("explicit", "explicit")) if self.element.get(key) == "yes"]
        kind = re.sub(r"\b(enum|struct|static|explicit)\s+", "", get("type"))
        if self.element.get("virt") not in (None, "non-virtual") and "override" not in get("argsstring"):
            words.insert(0, "virtual")
        kind = re.sub(r"^virtual ", "", kind)
        start = f"{head}{' '.join(words + [kind]).strip()} {self.name}".strip()
        start = code_text(start)
        start = re.sub(r"([&*]) (\w+)$", r"\1 \2", start)
        if self.kind == "variable":
            value = get("initializer")
            start = start.replace(f"{self.owner.replace('cleave::', '')}::", "")
            return f"{start}{get('argsstring')}{code_text(f' {value}') if value.startswith('{') else ' ' + value if value else ''};"
        return re.sub(r" ?(?<![=!<>])=(?!=) ?", " = ", f"{start}{code_text(get('argsstring'))};")

    def enumeration(self):
        values = self.element.findall("enumvalue")
        lines = []
        for value in values:
            text = " ".join(filter(None, (plain(value.find("name")), plain(value.find("initializer")))))
            note = " ".join(filter(None, (plain(value.find(f"{which}description")) for which in ("brief", "detailed"))))
            lines.append((f"{text},", note))
        head = f"enum {'class ' if self.element.get('strong') == 'yes' else ''}{self.name}"
        if not any(note for _, note in lines):
            return f"{head} {{ {' '.join(text for text, _ in lines).rstrip(',')} }};"
        width = max(len(text) for text, _ in lines)
        return "\n".join([f"{head} {{"] + [commented(f"{text:<{width if note else 0}}", note) for text, note in lines] + ["};"])


class Pages:
    def __init__(self, roots, headers):
        self.items, self.links, self.namespaces = {}, {}, {}
        types, seen = [], set()
        for root in roots:
            for compound in root.findall("compounddef"):
                kind, name = compound.get("kind"), plain(compound.find("compoundname"))
                is_type = kind in ("class", "struct", "union")
                if kind == "namespace":
                    self.namespaces[name] = compound
                if not (is_type or kind in ("namespace", "file")) or re.search(r"@|\binternal\b|\bdetail\b", name):
                    continue
                if is_type and (compound.get("prot") == "private" or name.startswith("std::")):
                    continue
                if is_type:
                    types.append(Item(compound, ""))
                for member in compound.iter("memberdef"):
                    qualified = plain(member.find("qualifiedname"))
                    hidden = re.search(r"@|\binternal\b|\bdetail\b", qualified) or qualified.startswith("std::")
                    if member.get("id") in seen or hidden or member.get("prot") == "private" or member.get("kind") == "friend":
                        continue
                    seen.add(member.get("id"))
                    self.add(Item(member, name if is_type else ""), member.get("id"))
        for item in types:
            self.add(item, item.element.get("id"))
        self.headers = headers

    def add(self, item, ident):
        # A header-less specialization, or a function of the standard library, is of no file of ours.
        if not item.file or not item.file.startswith("cleave/"):
            return
        self.items.setdefault(item.file, []).append(item)
        self.links[ident] = item

    def page_of(self, path):
        return posixpath.dirname(path)[len("cleave/"):].split("/")[0]

    def address(self, item, here):
        page = self.page_of(item.file)
        owner = item
        if item.owner and (item.kind == "variable" or not item.is_documented()):
            owner = next((i for i in self.items[item.file] if i.name == item.owner), item)
        return f"{'' if page == here else f'{page}.html'}#{owner.anchor()}"

    def types(self):
        """{name: address} of every type that is unique by its last name, for links in code."""
        found = {}
        for items in self.items.values():
            for item in items:
                if item.kind in ("class", "struct", "enum", "typedef") and not (item.owner and item.kind == "typedef"):
                    found.setdefault(item.name.split("::")[-1], []).append(self.address(item, None))
        return {name: places[0] for name, places in found.items() if len(places) == 1}

    def prose(self, element, here):
        """A description as HTML."""
        if element is None:
            return ""
        tags = {"para": "p", "computeroutput": "code", "bold": "strong", "emphasis": "em", "itemizedlist": "ul",
                "orderedlist": "ol", "listitem": "li"}
        signs = {"ndash": "--", "mdash": "---", "nonbreakablespace": " ", "sp": " ", "lsquo": "'", "rsquo": "'"}

        def inside(node):
            text = html.escape(node.text or "", quote=False)
            return text + "".join(one(child) + html.escape(child.tail or "", quote=False) for child in node)

        def one(node):
            if node.tag == "ref" and node.get("refid") in self.links and IS_NAME.search(plain(node)):
                return f'<a href="{self.address(self.links[node.get("refid")], here)}">{inside(node)}</a>'
            if node.tag in ("programlisting", "verbatim"):
                lines = node.findall("codeline")
                text = "\n".join(inside(line) for line in lines) if lines else inside(node)
                return f"</p><pre><code>{text.rstrip()}</code></pre><p>"
            if node.tag in tags:
                return f"<{tags[node.tag]}>{inside(node)}</{tags[node.tag]}>"
            if node.tag in signs:
                return signs[node.tag]
            if node.tag in ("ref", "highlight", "ulink"):
                return inside(node)
            raise SiteError(f"the API pages have no rule for Doxygen's <{node.tag}>")

        text = "".join(one(child) for child in element)
        text = re.sub(r"<p>\s*</p>", "", text)
        text = re.sub(r"\bdocs/([\w/-]+)\.md", r'<a href="../docs/\1.html">docs/\1.md</a>', text)
        # Blank lines would end the HTML block.
        return re.sub(r"\n\s*\n", "\n", text).strip()

    def describe(self, item, here):
        parts = [self.prose(item.element.find(f"{which}description"), here) for which in ("brief", "detailed")]
        text = "\n".join(part for part in parts if part)
        return f'<div class="api">\n{text}\n</div>\n' if text else ""

    def groups(self, members):
        """Members under the comment that covers them: one without a comment belongs to the line above. A getter does so only
        below another getter."""
        found = []
        for member in members:
            if member.is_documented():
                found.append([member])
            elif found and member.line <= found[-1][-1].end + 1 and member.is_getter() <= found[-1][0].is_getter():
                found[-1].append(member)
        return found

    def type_text(self, item, here):
        members = sorted((m for m in self.items[item.file] if m.owner == item.name), key=lambda m: m.line)
        fields = [m for m in members if m.kind == "variable" and not m.protected]
        others = [m for m in members if m.kind != "variable" and not re.search(r"= *(delete|default) *;$", m.declaration())]
        groups = self.groups(others)
        grouped = {id(m) for group in groups for m in group}
        rest = [m for m in others if id(m) not in grouped and not m.protected and "override" not in m.declaration()
                and "~" not in m.name]
        bases = [f"{b.get('prot')} {code_text(b.text)}" for b in item.element.findall("basecompoundref")]
        template = item.element.find("templateparamlist")
        head = f"{item.kind} {item.name.replace('cleave::', '')}" + (f" : {', '.join(bases)}" if bases else "")
        if template is not None:
            head = f"template <{', '.join(plain(p.find('type')) for p in template.findall('param'))}> {head}"
        lines = [wrapped(m.declaration(), "  ") if m.kind == "function" else textwrap.indent(m.declaration(), "  ")
                 for m in rest]
        lines += [commented(m.declaration(), m.comment()) for m in fields]
        if lines and item.kind == "class":
            lines.insert(0, " public:")
        body = "{\n" + "\n".join(lines) + "\n};" if lines else "{ ... };" if groups else "{};"
        title = item.name.replace("cleave::", "")
        text = f"### {title} {{#{item.anchor()}}}\n\n{self.describe(item, here)}\n```cpp\n{head} {body}\n```\n"
        for protected in (False, True):
            for group in groups:
                if group[0].protected == protected:
                    text += self.group_text(group, here, "####")
        return text

    def group_text(self, group, here, level):
        first = group[0]
        names = list(dict.fromkeys(m.name.split("::")[-1] for m in group))
        anchors = [m.anchor() for m in group]
        used = self.used_anchors
        anchor = anchors[0]
        while anchor in used:
            anchor += "-2"
        used.add(anchor)
        extra = ""
        for other in dict.fromkeys(anchors):
            if other not in used:
                used.add(other)
                extra += f'<a id="{other}" class="api-anchor"></a>'
        code = "\n".join(m.declaration() if m.kind == "enum" else wrapped(m.declaration()) for m in group)
        title = ", ".join(f"{name}" for name in names)
        mark = " (protected)" if first.protected else ""
        title = title.replace("*", r"\*").replace("[]", r"\[\]")
        return f"{level} {title}{mark} {{#{anchor}}}\n\n{extra}\n\n```cpp\n{code}\n```\n\n{self.describe(first, here)}\n"

    def header_text(self, path, here):
        items = sorted(self.items.get(path, []), key=lambda item: item.line)
        text = f"## {posixpath.basename(path)}\n\n`#include \"{path}\"`\n\n"
        for compound in self.namespaces.values():
            place = compound.find("location")
            if place is not None and place.get("file") == path and plain(compound.find("detaileddescription")):
                text += self.prose(compound.find("briefdescription"), here) + self.prose(
                    compound.find("detaileddescription"), here) + "\n\n"
        outer = [item for item in items if not item.owner]
        members = [item for item in outer if item.kind not in ("class", "struct", "union")]
        blocks = [(group[0].line, group) for group in self.groups(members)]
        blocks += [(item.line, item) for item in outer if item.kind in ("class", "struct", "union")]
        for _, block in sorted(blocks, key=lambda pair: pair[0]):
            text += (self.group_text(block, here, "###") if isinstance(block, list) else self.type_text(block, here)) + "\n"
        return text if blocks else ""

    def declared(self, path):
        """(name, anchor) of what a header declares outside of types, in its order."""
        items = sorted((item for item in self.items[path] if not item.owner), key=lambda item: item.line)
        shown = [item for item in items if item.is_documented() or item.kind in ("class", "struct")]
        first = {}
        for item in shown:
            first.setdefault(item.name.split("::")[-1], item.anchor())
        return first.items()

    def write(self, folder):
        """Writes all pages; returns the navigation."""
        folder.mkdir(parents=True, exist_ok=True)
        named, reached = self.headers
        nav, rows = [{"All headers": "api/index.md"}], {path: "" for path in named + reached}
        pages = {}
        for path in named + reached:
            pages.setdefault(self.page_of(path), []).append(path)
        for page, paths in sorted(pages.items()):
            self.used_anchors = {item.anchor() for path in paths for item in self.items.get(path, [])
                                 if item.kind in ("class", "struct", "union")}
            texts = {path: self.header_text(path, page) for path in paths}
            if not any(texts.values()):
                continue
            (folder / f"{page}.md").write_text(f"# cleave/{page}\n\n" + "\n".join(texts.values()))
            nav.append({page: f"api/{page}.md"})
            for path, text in texts.items():
                if text:
                    slug = re.sub(r"[^\w-]", "", posixpath.basename(path))
                    shown = ", ".join(f"[`{name}`]({page}.md#{anchor})" for name, anchor in self.declared(path))
                    rows[path] = f"| [{path[len('cleave/'):]}]({page}.md#{slug}) | {shown} |\n"
        table = "| header under `cleave/` | declares |\n|---|---|\n"
        (folder / "index.md").write_text(
            "# API reference\n\nThe declarations of the public headers, with their comments. `cleave/cleave.h` includes the\n"
            "headers that most programs need; [The library](../docs/library.md) says what each is for.\n\n## Public headers\n\n"
            + table + "".join(rows[path] for path in named)
            + "\n## Headers that these include\n\n" + table + "".join(rows[path] for path in reached))
        return nav


def write(folder, work):
    """Writes the API pages into `folder`; returns their navigation and {type: address}."""
    named, reached = public_headers()
    pages = Pages(run_doxygen(named + reached, pathlib.Path(work)), (named, reached))
    return pages.write(folder), pages.types()
