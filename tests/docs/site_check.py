#!/usr/bin/env python3
"""Opens the site of `./run docs` in headless Chromium: no console message, search finds pages (from a server and from files),
and no page is wider than a window of 1280 or 390 pixels. Needs the package chromium. `./run docs` calls it.

usage: site_check.py [SITE_FOLDER]
"""
import functools
import html
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

WORDS = ("checkpoint", "HeadAttention")

# Loads every page in a frame, one after another, and writes {"PAGE at WIDTH": what is wrong} into the document.
HARNESS = """<!doctype html><body><pre id="result"></pre><script>
const wrong = {};
const frame = document.body.appendChild(document.createElement("iframe"));
frame.style.cssText = "border: 0; height: 900px";
async function check(page) {
  frame.style.width = "1280px";
  await new Promise(resolve => { frame.onload = resolve; frame.src = page; });
  const inside = frame.contentDocument;
  for (const width of [1280, 390]) {
    frame.style.width = `${width}px`;
    await new Promise(resolve => setTimeout(resolve, 100));
    if (inside.documentElement.scrollWidth > width) wrong[`${page} at ${width}`] = "is wider than the window";
  }
  for (const part of ["h1", ".md-search__input", ".md-nav--primary", ".md-content"])
    if (!inside.querySelector(part)) wrong[page] = `has no ${part}`;
}
// Search runs in a worker. Chromium's virtual time does not wait for workers, but it does for the server's answers.
async function search(word) {
  await new Promise(resolve => { frame.onload = resolve; frame.src = `index.html?q=${word}`; });
  for (let second = 0; second < 20 && !frame.contentDocument.querySelector(".md-search-result__link"); ++second)
    await fetch("/wait-a-second");
  if (!frame.contentDocument.querySelector(".md-search-result__link")) wrong[`search for ${word}`] = "finds no page";
}
(async () => {
  for (const page of PAGES) await check(page);
  for (const word of WORDS) await search(word);
  document.getElementById("result").textContent = `checked ${JSON.stringify(wrong)}`;
})();
</script>"""


class Site(http.server.SimpleHTTPRequestHandler):
    """The site, and next to it the harness."""
    pages = []
    empty_index = ""  # for pages without a search: reading the whole one takes longer than all else on a page

    def do_GET(self):
        body, kind = HARNESS.replace("PAGES", json.dumps(self.pages)).replace("WORDS", json.dumps(WORDS)), "text/html"
        if self.path == "/wait-a-second":
            time.sleep(1)
        elif self.path.startswith("/search/") and "?q=" not in self.headers.get("Referer", ""):
            body, kind = self.empty_index, "application/json"
        elif self.path != "/harness.html":
            return super().do_GET()
        body = body.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, *_):
        pass


def open_page(address, budget_ms=8000):
    """(the document after its scripts ran, the console's lines). No host but this one can be reached."""
    with tempfile.TemporaryDirectory(prefix="cleave-site-", ignore_cleanup_errors=True) as profile:
        run = subprocess.run(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
             "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
             f"--virtual-time-budget={budget_ms}", "--dump-dom", address],
            capture_output=True, text=True, timeout=300)
    return run.stdout, [line for line in run.stderr.splitlines() if ":CONSOLE" in line]


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    site = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else root / "build/site").resolve()
    if not (site / "index.html").exists():
        sys.exit(f"site_check: {site} has no site; build it with ./run docs")
    if not shutil.which("chromium"):
        sys.exit("site_check: chromium is not installed")
    Site.pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    Site.empty_index = json.dumps({**json.loads((site / "search/search_index.json").read_text()), "docs": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Site, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served = f"http://127.0.0.1:{server.server_address[1]}"
    problems = []
    for word in WORDS:
        text, console = open_page(f"file://{site}/index.html?q={word}")
        problems += console
        if 'class="md-search-result__link"' not in text:
            problems.append(f"search for {word} in the files finds no page")
    text, console = open_page(f"{served}/harness.html", 120000)
    result = re.search(r"checked (\{.*?\})</pre>", html.unescape(text))
    problems += console
    if result:
        problems += [f"{page} {what}" for page, what in json.loads(result.group(1)).items()]
    else:
        problems.append("the pages could not be opened")
    print("\n".join(problems + [f"site_check: {len(Site.pages)} pages, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
