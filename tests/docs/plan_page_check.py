#!/usr/bin/env python3
"""Opens the page of `cleave plan --cluster --html` in headless Chromium: no console message, the layouts are those of --json,
sliders and choices leave the layouts that they should, and the page is not wider than a window of 1280 or 390 pixels. Needs the
package chromium.

usage: plan_page_check.py CLEAVE [--screenshots FOLDER]      exit code 77: chromium is not installed
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from chromium import SKIPPED, chromium, run_check

PLAN = ["plan", "--model", "llama3-8b", "--vocab-size", "128256", "--cluster", "h100-80gb", "--ranks", "16", "--batch-size", "256",
        "--seq-len", "8192", "--dtype", "bf16", "--tokens", "1T"]

# A model with experts, whose pages have one more slider and column.
EXPERTS = ["plan", "--model", "mixtral-8x7b", "--cluster", "h100-80gb", "--ranks", "16", "--batch-size", "256", "--seq-len", "8192",
           "--dtype", "bf16", "--tokens", "1T"]

# Runs in the page itself, and writes {"what": "what is wrong"} into the document.
CHECK = """
const wrong = {};
const expect = (what, got, want) => {
  const [a, b] = [got, want].map(value => JSON.stringify(value));
  if (a !== b) wrong[what] = `${a}, expected ${b}`;
};
const near = (what, got, want) => { if (!(Math.abs(got / want - 1) < 2e-3)) wrong[what] = `${got}, expected ${want}`; };
const slide = (key, index) => { controls[key].input.value = index; controls[key].input.oninput(); };
const fits = () => layouts.filter(l => l.bytes <= controls.limit.value() &&
  CHOSEN.every(key => (controls[key].value() ?? l[key]) === l[key]));
const rows = () => [...at("rows").children];
function check() {
  expect("width", document.documentElement.scrollWidth <= innerWidth, true);
  expect("rows", rows().length, EXPECTED.layouts.length);
  fits().slice(0, EXPECTED.layouts.length).forEach((l, i) => {
    const want = EXPECTED.layouts[i];
    expect(`flags ${i}`, flags(l), want.flags);
    near(`seconds ${i}`, l.seconds, want.step_s);
    near(`bytes ${i}`, l.bytes, want.bytes);
    near(`MFU ${i}`, data.ideal_s / l.seconds, want.mfu);
    near(`days ${i}`, days(l), want.days);
  });
  rows()[1].click();
  expect("clicked row", [at("flags").textContent, rows()[1].ariaSelected], [EXPECTED.layouts[1].flags, "true"]);
  expect("reason", at("why").textContent.includes("% slower"), true);
  const before = fits().length, speed = rows()[0].children[2].textContent, daysOfFirst = rows()[0].children[3].textContent;
  slide("tp", 1);
  expect("tp of the slider", new Set(rows().map(row => row.children[6].textContent)).size, 1);
  expect("fewer layouts", fits().length > 0 && fits().length < before, true);
  slide("tp", 0);
  expect("and back", fits().length, before);
  slide("tokens", controls.tokens.input.max);
  expect("tokens change days, not the speed", [rows()[0].children[3].textContent === daysOfFirst,
    rows()[0].children[2].textContent], [false, speed]);
  slide("limit", 0);
  expect("nothing fits into 8 GiB", [rows().length, /smallest needs/.test(at("count").textContent)], [0, true]);
  slide("limit", memories.indexOf(data.memory_limit));
  controls.recompute.input.value = "3";
  controls.recompute.input.onchange();
  expect("recompute full", rows().every(row => row.lastChild.textContent === "full"), true);
  controls.recompute.input.value = "";
  controls.recompute.input.onchange();
  for (const input of document.querySelectorAll("input, select"))
    expect("a label is around each control", input.closest("label") !== null, true);
  document.body.append(Object.assign(document.createElement("pre"),
    { hidden: true, textContent: `checked ${JSON.stringify(wrong)}` }));
}
setTimeout(check, 200);
"""


def check_page(page, expected, width, screenshots):
    """The problems of a page in a window of `width` pixels."""
    # The check is part of a copy of the page, so that it sees the names of the page's script.
    check = CHECK.replace("EXPECTED", json.dumps(expected)).replace("</", "<\\/")
    text = page.read_text().replace("update();\n</script>", f"update();{check}\n</script>")
    opened, problems = run_check(page, text, width)
    if screenshots:
        chromium(opened, width, [f"--screenshot={screenshots / page.stem}-{width}.png"])
    return [f"{page.stem} at {width}: {problem}" for problem in problems]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cleave")
    parser.add_argument("--screenshots", type=pathlib.Path)
    options = parser.parse_args()
    if not shutil.which("chromium"):
        print("plan_page_check: skipped: chromium is not installed")
        return SKIPPED
    problems = []
    with tempfile.TemporaryDirectory(prefix="cleave-plan-") as folder:
        for name, plan in (("plan", PLAN), ("experts", EXPERTS)):
            page = pathlib.Path(folder) / f"{name}.html"
            answer = subprocess.run([options.cleave, *plan, "--html", str(page), "--json"], check=True, capture_output=True, text=True)
            for width in (1280, 390):
                problems += check_page(page, json.loads(answer.stdout), width, options.screenshots)
    print("\n".join(problems + [f"plan_page_check: 2 pages, 2 widths, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
