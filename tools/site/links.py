"""Checks a built site: every link leads to a page, file or anchor of the site, and no page loads anything from outside."""
import html.parser
import posixpath
import re
import urllib.parse

LOADS = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}
OUTSIDE = re.compile(r"(https?:)?//")
IN_CSS = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")
IN_SCRIPT = re.compile(r"""["'`]((?:https?:)?//(?!www\.w3\.org/)\w[\w.-]*\.\w+[^"'`\s]*)""")


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loads = {""}, [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif (tag, name) in LOADS:
                self.loads.append(value)
            elif tag == "a" and name == "href":
                self.links.append(value)


def problems(out):
    """What is wrong with the site in folder `out`, one line each."""
    found = []
    pages = {path.relative_to(out).as_posix(): Page(path.read_text()) for path in sorted(out.rglob("*.html"))}
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    for name, page in pages.items():
        for target in page.loads + page.links:
            if OUTSIDE.match(target):
                if target in page.loads:
                    found.append(f"{name}: loads {target}")
                continue
            if re.match(r"(mailto|data|javascript):", target):
                continue
            place, _, anchor = target.partition("#")
            there = posixpath.normpath(posixpath.join(posixpath.dirname(name), urllib.parse.unquote(place))) if place else name
            if there not in files and there not in (".", "") or place.startswith("/"):
                found.append(f"{name}: dead link {target}")
            elif there in pages and urllib.parse.unquote(anchor) not in pages[there].anchors:
                found.append(f"{name}: dead anchor {target}")
    for path in sorted(out.rglob("*.css")) + sorted(out.rglob("*.js")):
        name = path.relative_to(out).as_posix()
        if name.startswith("search/"):
            continue
        pattern = IN_CSS if path.suffix == ".css" else IN_SCRIPT
        found += [f"{name}: names {address}" for address in pattern.findall(path.read_text())]
    return found
