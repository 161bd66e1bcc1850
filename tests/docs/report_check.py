#!/usr/bin/env python3
"""Opens the pages of `cleave report` in headless Chromium: no console message, every chart is there, hovering and the arrow
keys show the values of metrics.jsonl, log scale and smoothing change the curves, and no page is wider than a window of 1280
or 390 pixels. Needs the package chromium.

usage: report_check.py CLEAVE [--screenshots FOLDER]      exit code 77: chromium is not installed
"""
import argparse
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

from chromium import SKIPPED, chromium, run_check

TITLES = ["Loss", "Learning rate", "Gradient norm before clipping", "Tokens per second", "Time per step",
          "Resident memory of rank 0's process, peak so far"]

# Runs in the page itself, and writes {"what": "what is wrong"} into the document.
CHECK = """
const wrong = {};
const expect = (what, got, want) => {
  const [a, b] = [got, want].map(value => JSON.stringify(value));
  if (a !== b) wrong[what] = `${a}, expected ${b}`;
};
function check() {
  expect("titles", drawings.map(drawing => drawing.figure.querySelector("h3").textContent), EXPECTED.titles);
  expect("width", document.documentElement.scrollWidth <= innerWidth, true);
  for (const drawing of drawings) {
    const { svg, title } = drawing, lines = svg.querySelectorAll("path.line:not(.faint)");
    expect(`${title}: lines`, lines.length, drawing.lines.length);
    for (const path of svg.querySelectorAll("path"))
      expect(`${title}: path`, /NaN|Infinity|^$/.test(path.getAttribute("d")), false);
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect(), frame = svg.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1)
        wrong[`${title}: ${text.textContent}`] = "is outside of the chart";
    }
    expect(`${title}: aria-label`, svg.getAttribute("aria-label").startsWith(`${title}. `), true);
  }
  for (const name of document.querySelectorAll("th[scope=row]")) {
    const text = document.createRange();
    text.selectNodeContents(name);
    const lines = new Set([...text.getClientRects()].map(box => box.top)).size;
    if (name.textContent.startsWith("rank ") && lines > 2) wrong[`the row ${name.textContent}`] = `has ${lines} lines, expected at most 2`;
  }
  if (drawings.length) use(drawings[0]);
  document.body.append(Object.assign(document.createElement("pre"),
    { hidden: true, textContent: `checked ${JSON.stringify(wrong)}` }));
}
function use({ svg, tip }) {
  expect("tip before", tip.hidden, true);
  for (const [step, text] of EXPECTED.hovers) {
    const box = svg.getBoundingClientRect();
    const at = { clientX: box.left + drawings[0].px(step), clientY: box.top + 50, bubbles: true };
    svg.dispatchEvent(new PointerEvent("pointermove", at));
    expect(`at step ${step}`, [...tip.children].map(row => row.textContent), text);
    const frame = tip.getBoundingClientRect();
    expect(`tip at step ${step} is in the window`, frame.left >= 0 && frame.right <= innerWidth, true);
    expect(`tip at step ${step} does not cover the curve`, frame.left > at.clientX || frame.right < at.clientX ||
      frame.top >= box.top + drawings[0].bottom, true);
    expect("crosses", drawings.every(drawing => drawing.cross.querySelector(".cross")), true);
  }
  svg.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  expect("tip after Escape", tip.hidden, true);
  svg.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  expect("arrow key", tip.firstChild.textContent, EXPECTED.first);
  const curve = () => svg.querySelector("path.line:not(.faint)").getAttribute("d");
  const before = curve();
  drawings[0].log.click();
  expect("log scale moves the curve", curve() === before, false);
  drawings[0].log.click();
  expect("and back", curve(), before);
  const smoothing = slider.value;
  slider.value = 10;
  slider.oninput();
  expect("smoothing moves the curve", curve() === before, false);
  slider.value = smoothing;
  slider.oninput();
  svg.dispatchEvent(new PointerEvent("pointermove",  // for the screenshot
    { clientX: svg.getBoundingClientRect().left + drawings[0].px(EXPECTED.hovers[0][0]) }));
}
setTimeout(check, 200);
"""


def values(step):
    """The metrics of a step: a loss with noise and a gap, and one spike."""
    noise = math.sin(step * 12.9898) * 0.1
    row = {"step": step, "loss": 2 + 4 / (1 + step / 50) + noise, "grad_norm": 1 + abs(noise), "lr": 1e-3 / (1 + step),
           "tokens": 512 * step, "tokens_per_s": 20000 + 5000 * noise, "step_ms": 25 + noise, "comm_ms": 3 + noise,
           "peak_rss_bytes": (400 << 20) + min(step, 40) * (1 << 20), "mfu": 0.3}
    if 20 <= step < 23:
        row["loss"] = None
    if step == 7:
        row["grad_norm"] = 30
    if step % 10 == 0:
        row["eval_loss"] = row["loss"] + 0.2 if row["loss"] else 5
    return row


def make_run(folder, steps, name, settings):
    run = folder / name
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(values(step)) + "\n" for step in range(1, steps + 1)))
    memory = [{"rank": f"rank {rank} (dp 0, tp {rank})", "bytes": {"weights": 30 << 20, "gradients": 30 << 20,
               "optimizer": 60 << 20, "activations": (20 + rank) << 20}, "forecast": 150 << 20} for rank in range(2)]
    (run / "report.json").write_text(json.dumps({
        "title": "llama-tiny on 2 ranks", "outcome": "finished", "num_steps": steps, "first_step": 1, "wall_s": 75.5,
        "settings": {"started": "2026-01-02 03:04:05 UTC", "host": "host-a", "CPU": "a CPU", "cleave version": "0.1.0",
                     "command": "cleave train --data " + "/long/path" * 20, **settings},
        "memory": memory, "other_time": {"loading": 1.5, "saving": 2.5},
        "step_time": {"matrix products": 0.012, "attention": 0.004, "collectives": 0.003, "optimizer": 0.002, "other": 0.004}}))
    return str(run)


def shown(value):
    """A value as the page shows it: of the seven digits in the data, six."""
    return f"{float('%.6g' % float('%.7g' % value)):,.9f}".rstrip("0").rstrip(".")


def hover_text(step, runs=("",)):
    """[step, the rows of the loss's tip there], in pages that show every step."""
    row, rows = values(step), [f"step {step:,}"]
    for run in runs:
        for label, key in (("training", "loss"), ("evaluation", "eval_loss")):
            if row.get(key) is not None:
                rows.append(f"{run}, {label}: {shown(row[key])}" if run else f"{label}: {shown(row[key])}")
    return [step, rows]


def bucket_texts(steps, at, count=800):
    """The same for the bucket number `at` of a run of so many steps that the page shows buckets of them."""
    def bucket(rows, index):
        return rows[index * len(rows) // count:(index + 1) * len(rows) // count]

    def centre(rows):
        return (rows[0]["step"] + rows[-1]["step"]) / 2

    def text(rows, key):
        known = [row[key] for row in rows]
        spread = f" ({shown(min(known))} to {shown(max(known))})" if min(known) < max(known) else ""
        return f"{shown(sum(known) / len(known))}{spread}"

    def steps_of(rows):
        first, last = rows[0]["step"], rows[-1]["step"]
        return f"{last:,}" if first == last else f"{first:,} to {last:,}"

    all_rows = [values(step) for step in range(1, steps + 1)]
    evals = [row for row in all_rows if "eval_loss" in row]
    rows = bucket(all_rows, at)
    near = min((bucket(evals, index) for index in range(count)), key=lambda some: abs(centre(some) - centre(rows)))
    return [centre(rows), [f"step {steps_of(rows)}: mean (lowest to highest)", f"training: {text(rows, 'loss')}",
                           f"evaluation at step {steps_of(near)}: {text(near, 'eval_loss')}"]]


def check_page(page, expected, width, screenshots):
    """The problems of a page in a window of `width` pixels."""
    # The check is part of a copy of the page, so that it sees the names of the page's script.
    check = CHECK.replace("EXPECTED", json.dumps(expected)).replace("</", "<\\/")
    text = page.read_text().replace("slider.oninput();\nnew ResizeObserver", f"slider.oninput();{check}\nnew ResizeObserver")
    opened, problems = run_check(page, text, width)
    if screenshots:
        chromium(opened, width, [f"--screenshot={screenshots / page.stem}-{width}.png"])
    return [f"{page.stem} at {width}: {problem}" for problem in problems]


def pages(cleave, folder):
    """(page, what is expected) of each page."""
    runs = {"short": make_run(folder, 60, "short", {"tp": "1", "dtype": "fp32"}),
            "other": make_run(folder, 45, "other", {"tp": "2", "dtype": "fp32"}),
            "long": make_run(folder, 20000, "long", {}), "empty": make_run(folder, 0, "empty", {})}
    both = [runs["short"], runs["other"]]  # their names in the page: without the common folder
    for name, words, expected in (
            ("short", [runs["short"]], {"hovers": [hover_text(step) for step in (1, 10, 30, 60)], "first": "step 1"}),
            ("both", both, {"hovers": [hover_text(30, ("short", "other"))], "first": "step 1"}),
            ("long", [runs["long"]], {"hovers": [bucket_texts(20000, bucket) for bucket in (3, 401)],
                                      "first": "step 1 to 25: mean (lowest to highest)"}),
            ("empty", [runs["empty"]], {"titles": [], "hovers": []})):
        page = folder / f"{name}.html"
        subprocess.run([cleave, "report", *words, "--out", str(page)], check=True, stdout=subprocess.DEVNULL)
        yield page, {"titles": TITLES, **expected}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cleave")
    parser.add_argument("--screenshots", type=pathlib.Path)
    options = parser.parse_args()
    if not shutil.which("chromium"):
        print("report_check: skipped: chromium is not installed")
        return SKIPPED
    problems, count = [], 0
    with tempfile.TemporaryDirectory(prefix="cleave-report-") as folder:
        for page, expected in pages(options.cleave, pathlib.Path(folder)):
            size = page.stat().st_size
            if size > 600 << 10:
                problems.append(f"{page.stem}: {size} bytes")
            for width in (1280, 390):
                problems += check_page(page, expected, width, options.screenshots)
                count += 1
    print("\n".join(problems + [f"report_check: {count} pages, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
