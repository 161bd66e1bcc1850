"""Collects the pages of the site: the repository's Markdown files under their own paths, so that relative links stay."""
import os
import posixpath
import re
import shutil

import cpp_source

INDEX = "docs/index.md"
API = "cleave/cleave.h"  # links to it lead to the API reference
IMAGE = re.compile(r"\.(svg|png)$")
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)[^)\s]*\)")
LANGUAGES = {".cc": "cpp", ".h": "cpp", ".py": "python", ".sh": "sh", ".json": "json", ".cmake": "cmake"}


class SiteError(Exception):
    pass


def sections(index):
    """[(section, [(subsection or "", link text, target)])] of the list items of docs/index.md."""
    found, subsection = [], ""
    for block in re.split(r"\n(?=#|\d+\. |- |\n)", index):
        block = block.strip()
        if block.startswith("## "):
            found.append((block.split("\n")[0][3:], []))
            subsection = ""
        elif re.fullmatch(r"[A-Z][\w ]*:", block):
            subsection = block[:-1]
        elif re.match(r"(\d+\.|-) ", block) and found:
            links = [(subsection, " ".join(text.split()), target) for text, target in LINK.findall(block)]
            found[-1][1].extend(links)
    return found


def navigation(index, api):
    """MkDocs' `nav` of docs/index.md. `api`: that of the API reference, which takes the place of API."""
    nav, seen = [], set()
    for section, links in sections(index):
        items = []
        nav.append({section: items})
        for subsection, text, target in links:
            path = posixpath.normpath(posixpath.join("docs", target))
            if path in seen or re.match(r"\w+:", target):
                continue
            seen.add(path)
            place = items
            if subsection:
                place = next((item[subsection] for item in items if subsection in item), None)
                if place is None:
                    place = []
                    items.append({subsection: place})
            title = "Overview" if path == "README.md" else text.replace("`", "")
            place.append({title: api if path == API else path})
    if not nav or not nav[0]:
        raise SiteError(f"{INDEX}: no sections with links")
    next(iter(nav[0].values())).append({"All pages": INDEX})
    return nav


def nav_paths(nav):
    for item in nav:
        for value in item.values() if isinstance(item, dict) else [item]:
            if isinstance(value, str):
                yield value
            else:
                yield from nav_paths(value)


def check_complete(nav, tracked):
    """Every page of the root, docs/ and examples/ must be in the navigation."""
    listed = set(nav_paths(nav))
    missing = [path for path in tracked if re.match(r"([^/]+|docs/.*|examples/.*)\.md$", path) and path not in listed]
    if missing:
        raise SiteError(f"not in {INDEX}: {', '.join(missing)}")


def converted(path, text, files):
    """The page's text for the site, and the paths that it links to. `files`: all files of the repository."""
    linked = set()

    def link(match):
        target = match.group(2)
        if re.match(r"\w+:", target) or target.startswith("#"):
            return match.group()
        place, hash_, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(path), place))
        if there == API:
            return f"]({posixpath.relpath('api/index.md', posixpath.dirname(path) or '.')})"
        if there not in files:
            raise SiteError(f"{path}: {target} is not a file of the repository")
        linked.add(there)
        suffix = "" if there.endswith(".md") or IMAGE.search(there) else ".md"
        return f"]({place}{suffix}{hash_}{anchor})"

    parts = re.split(r"(^```.*?^```[ ]*$)", text, flags=re.DOTALL | re.MULTILINE)
    for number in range(0, len(parts), 2):
        prose = re.sub(r"(\]\()([^)\s]+)\)", link, parts[number])
        parts[number] = re.sub(r"<details>(<summary>.*?</summary>)", r'<details markdown="1">\1\n', prose)
    return "".join(parts), linked


def source_page(path, text):
    fence = "~~~~" if "```" in text else "```"
    return f"# {path}\n\n{fence}{LANGUAGES.get(os.path.splitext(path)[1], 'text')}\n{text}{fence}\n"


def collect(nav, out):
    """Writes all pages of `nav`, except the API reference, and what they link to. Returns the pages not in `nav`."""
    files = set(cpp_source.tracked())
    check_complete(nav, files)
    listed = {path for path in nav_paths(nav) if not path.startswith("api/")}
    pending, done = sorted(listed), set()
    while pending:
        path = pending.pop()
        if path in done:
            continue
        done.add(path)
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if IMAGE.search(path):
            shutil.copyfile(cpp_source.ROOT / path, target)
        elif path.endswith(".md"):
            text, linked = converted(path, cpp_source.read(path), files)
            target.write_text(text)
            pending += sorted(linked)
        else:
            (out / f"{path}.md").write_text(source_page(path, cpp_source.read(path)))
    extra = done - listed
    return sorted(path if path.endswith(".md") else f"{path}.md" for path in extra if not IMAGE.search(path))
