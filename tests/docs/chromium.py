"""Opens pages in headless Chromium and runs checks in them, for the tests of the pages that Cleave writes."""
import html
import json
import re
import subprocess
import tempfile

SKIPPED = 77  # a test's exit code without Chromium
NARROWEST = 500  # pixels: Chromium has no window that is narrower


def chromium(page, width, more):
    """Opens a page in a window of `width` pixels, without a network; `more`: further flags."""
    with tempfile.TemporaryDirectory(prefix="cleave-page-", ignore_cleanup_errors=True) as profile:
        return subprocess.run(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
             "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars",
             f"--window-size={width},2600", "--virtual-time-budget=4000", *more, f"file://{page}"],
            capture_output=True, text=True, timeout=300)


def run_check(page, text, width):
    """Writes `text`, a page with a check in its script, beside `page` and opens it. Returns the file that was opened and the
    problems: console messages, and the entries of the object that the check wrote into a hidden <pre>, after "checked "."""
    checked = opened = page.with_name(f"{page.stem}.{width}.html")
    checked.write_text(text)
    if width < NARROWEST:
        opened = page.with_name(f"{page.stem}.{width}.frame.html")
        opened.write_text(f'<!doctype html><body style="margin: 0"><iframe style="border: 0; width: {width}px; height: 4200px" '
                          f'srcdoc="{html.escape(text)}"></iframe><script>setTimeout(() => document.body.append('
                          'frames[0].document.querySelector("pre[hidden]").textContent), 2500)</script>')
    run = chromium(opened, width, ["--dump-dom"])
    result = re.search(r"checked (\{[^\n]*?\})(</pre>|</body>)", html.unescape(run.stdout))
    problems = [line for line in run.stderr.splitlines() if ":CONSOLE" in line]
    problems += [f"{what}: {problem}" for what, problem in json.loads(result.group(1)).items()] if result else ["no result"]
    return opened, problems
