"""Tests the parts of the documentation site's build that need no MkDocs: navigation, links, and the checks of the output."""
import pathlib
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "tools/site"), str(SOURCE / "tools")]

import api  # noqa: E402
import cpp_source  # noqa: E402
import links  # noqa: E402
import pages  # noqa: E402

INDEX = """# Documentation

## Start here

1. [README](../README.md): what it is.
2. [Installing](installing.md): in your
   project.

## Guides

3. [GPUs](gpus.md): see also [Installing](installing.md).
4. [The library](library.md): headers. [API
   reference](../cleave/cleave.h): declarations.

Examples:

- [examples/a](../examples/a/README.md): the first.
"""


class Navigation(unittest.TestCase):
    def test_follows_the_index(self):
        self.assertEqual(pages.navigation(INDEX, [{"nn": "api/nn.md"}]), [
            {"Start here": [{"Overview": "README.md"}, {"Installing": "docs/installing.md"}, {"All pages": "docs/index.md"}]},
            {"Guides": [{"GPUs": "docs/gpus.md"}, {"The library": "docs/library.md"},
                        {"API reference": [{"nn": "api/nn.md"}]},
                        {"Examples": [{"examples/a": "examples/a/README.md"}]}]}])

    def test_page_that_the_index_lacks_is_refused(self):
        nav = pages.navigation(INDEX, "api/index.md")
        listed = ["README.md", "docs/index.md", "docs/installing.md", "docs/gpus.md", "docs/library.md", "tests/golden/README.md"]
        pages.check_complete(nav, listed)
        with self.assertRaisesRegex(pages.SiteError, "not in docs/index.md: docs/slurm.md"):
            pages.check_complete(nav, listed + ["docs/slurm.md"])

    def test_index_of_the_repository_names_every_page(self):
        pages.check_complete(pages.navigation(cpp_source.read(pages.INDEX), "api/index.md"), cpp_source.tracked("*.md"))


class Conversion(unittest.TestCase):
    FILES = {"docs/a.md", "docs/b.md", "docs/c.svg", "examples/x/main.cc"}

    def test_links_to_sources_and_to_the_api_are_rewritten(self):
        text, linked = pages.converted(
            "docs/a.md", "[b](b.md#part) ![c](c.svg)\n[x](../examples/x/main.cc) [api](../cleave/cleave.h) [w](https://arxiv.org/x)"
            "\n```cpp\n[](int x) {}\n```\n", self.FILES)
        self.assertEqual(text, "[b](b.md#part) ![c](c.svg)\n[x](../examples/x/main.cc.md) [api](../api/index.md) "
                               "[w](https://arxiv.org/x)\n```cpp\n[](int x) {}\n```\n")
        self.assertEqual(linked, {"docs/b.md", "docs/c.svg", "examples/x/main.cc"})

    def test_link_to_a_missing_file_is_refused(self):
        with self.assertRaisesRegex(pages.SiteError, "docs/a.md: none.md is not a file"):
            pages.converted("docs/a.md", "[x](none.md)", self.FILES)


class Links(unittest.TestCase):
    def found(self, **files):
        with tempfile.TemporaryDirectory(prefix="cleave-site-") as folder:
            for name, text in files.items():
                (pathlib.Path(folder) / name.replace("_", ".")).write_text(text)
            return links.problems(pathlib.Path(folder))

    def test_sound_site_has_no_problems(self):
        self.assertEqual(self.found(
            a_html='<a href="b.html#x">b</a> <a href="#y" id="y">y</a> <a href="https://arxiv.org/abs/1">paper</a>',
            b_html='<h1 id="x">x</h1><script src="s.js"></script>', s_js='f("http://www.w3.org/2000/svg")', c_css="a{}"), [])

    def test_dead_links_and_anchors_are_found(self):
        self.assertEqual(self.found(a_html='<a href="none.html">x</a><a href="b.html#none">x</a><a href="/b.html">x</a>',
                                    b_html="<p>"),
                         ["a.html: dead link none.html", "a.html: dead anchor b.html#none", "a.html: dead link /b.html"])

    def test_whatever_loads_from_outside_is_found(self):
        host = "//" + "fonts.test/f"
        self.assertEqual(self.found(a_html=f'<script src="{host}.js"></script>', b_css=f"a{{background:url({host}.png)}}",
                                    c_js=f'load("{host}.js")'),
                         [f"a.html: loads {host}.js", f"b.css: names {host}.png", f"c.js: names {host}.js"])


class Code(unittest.TestCase):
    def test_declarations_are_written_as_in_the_sources(self):
        self.assertEqual(api.code_text("const std::vector< cleave::Axis > & axes"), "const std::vector<Axis>& axes")
        self.assertEqual(api.code_text("(T &&value, char *out, const Parts &... parts)"),
                         "(T&& value, char* out, const Parts&... parts)")

    def test_headers_are_those_of_cleave_h_and_of_the_page(self):
        named, reached = api.public_headers()
        self.assertIn("cleave/nn/attention.h", named)
        self.assertIn("cleave/compat/oslo.h", named)
        self.assertIn("cleave/mesh/axis.h", reached)
        self.assertFalse(set(named) & set(reached))


if __name__ == "__main__":
    unittest.main()
