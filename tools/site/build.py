#!/usr/bin/env python3
"""Builds the documentation site. `./run docs` calls it with the Python that has MkDocs.

usage: build.py OUT_FOLDER
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import api  # noqa: E402
import cpp_source  # noqa: E402
import links  # noqa: E402
import pages  # noqa: E402

ADDRESS = re.compile(r"([\"'`])https?://(?!www\.w3\.org/)[^\"'`\n]*\1")


def make_offline(out):
    """Removes what needs a server, and the addresses from which the theme's scripts could load something."""
    for name in ("404.html", "sitemap.xml", "sitemap.xml.gz"):
        (out / name).unlink(missing_ok=True)
    for path in out.rglob("*.map"):
        path.unlink()
    for path in out.rglob("*.js"):
        if path.parent.name != "search":
            path.write_text(ADDRESS.sub(r"\1about:blank\1", path.read_text()))


def link_types(out, types):
    """In the code of the API pages, makes the names of types links to them."""
    for path in (out / "api").glob("*.html"):
        def link(match):
            place = types.get(match.group(2))
            if place is None:
                return match.group()
            return f'{match.group(1)}<a class="api-link" href="{place}">{match.group(2)}</a></span>'
        path.write_text(re.sub(r'(<span class="(?:n|nc|kt)">)(\w+)</span>', link, path.read_text()))


def build(out):
    work = out.parent / "site-source"
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    source = work / "pages"
    source.mkdir(parents=True)
    nav, types = api.write(source / "api", work / "doxygen")
    nav = pages.navigation(cpp_source.read(pages.INDEX), nav)
    others = pages.collect(nav, source)
    (source / "site").mkdir()
    for name in ("style.css", "iframe-worker.js"):
        shutil.copy(HERE / name, source / "site")
    # JSON is YAML.
    settings = {"INHERIT": str(HERE / "mkdocs.yml"), "docs_dir": str(source), "site_dir": str(out), "nav": nav,
                "not_in_nav": "\n".join(f"/{path}" for path in others)}
    (work / "mkdocs.yml").write_text(json.dumps(settings))
    run = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", str(work / "mkdocs.yml")],
                         env=dict(os.environ, NO_MKDOCS_2_WARNING="1"))
    if run.returncode != 0:
        raise pages.SiteError("mkdocs failed")
    link_types(out, types)
    make_offline(out)
    problems = links.problems(out)
    if problems:
        raise pages.SiteError("\n".join(problems))
    count = len(list(out.rglob("*.html")))
    print(f"docs: {count} pages, no dead links; open {out.relative_to(cpp_source.ROOT)}/index.html")


if __name__ == "__main__":
    try:
        build(pathlib.Path(sys.argv[1]).resolve())
    except pages.SiteError as error:
        sys.exit(f"docs: {error}")
