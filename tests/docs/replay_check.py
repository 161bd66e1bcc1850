#!/usr/bin/env python3
"""Records steps with `cleave train --record-step` and opens their pages in headless Chromium: no console message, the sections are
there, totals are those of metrics.jsonl, a click on a collective marks its partners, replay.json gives the same timeline as the page,
and no page is wider than a window of 1280 or 390 pixels; also the page of a lesson, with its questions, and that of a step of
`cleave generate`. Needs the package chromium.

usage: replay_check.py CLEAVE [--screenshots FOLDER]      exit code 77: chromium is not installed
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

from chromium import SKIPPED, chromium, run_check

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
import draw_replay  # noqa: E402

STEP = 2
RUNS = {"one": [], "processes": ["--tp", "2"], "tp_dp": ["--tp", "2", "--dp", "2"], "pp": ["--pp", "2"], "fsdp": ["--dp", "2", "--fsdp", "--recompute", "full"]}

# Runs in the page itself, and writes {"what": "what is wrong"} into the document.
CHECK = """
const wrong = {};
const expect = (what, got, want) => {
  const [a, b] = [got, want].map(value => JSON.stringify(value));
  if (a !== b) wrong[what] = `${a}, expected ${b}`;
};
const shape = () => model.ranks.map(rank => rank.events.map(e =>
  [e.kind, e.name, e.track, Math.round(e.begin), e.depth, e.call?.op ?? "", e.call?.number ?? -1]));
function check() {
  expect("width", document.documentElement.scrollWidth <= innerWidth, true);
  expect("ranks", model.ranks.length, EXPECTED.ranks);
  expect("loss", model.summary.metrics.loss, EXPECTED.loss);
  if (EXPECTED.trains) expect("step_ms", model.summary.metrics.step_ms, EXPECTED.step_ms);
  if (EXPECTED.trains) expect("comm_ms", Math.abs(model.summary.comm_ms - EXPECTED.comm_ms) < 1e-4, true);
  expect("a lesson is shown", !by("lesson").hidden, EXPECTED.questions > 0);
  expect("questions", by("questions").children.length, EXPECTED.questions);
  expect("the lesson is the page's title", document.title.startsWith("Lesson: "), EXPECTED.questions > 0);
  for (const details of document.querySelectorAll("#questions details")) details.open = true;
  expect("width with answers", document.documentElement.scrollWidth <= innerWidth, true);
  expect("tiles", by("totals").children.length >= (EXPECTED.trains ? 4 : 3), true);
  expect("weights", by("weight").options.length, model.summary.weights.length);
  expect("memory", model.ranks.every(rank => rank.memory.length > 0), true);
  expect("bars", by("ranges").querySelectorAll(".held").length > 0, true);
  expect("gathered", by("ranges").querySelectorAll(".gathered").length > 0, EXPECTED.is_fsdp);
  expect("a forecast is shown", !by("forecastSection").hidden, EXPECTED.trains);
  if (EXPECTED.trains) {
    const cells = [...by("forecastTimes").rows].map(row => [...row.cells].map(cell => cell.textContent));
    expect("kinds of time", cells.map(row => row[0]), ["kind", "matrix products", "attention", "memory-bound", "exposed communication", "bubble and waiting", "step"]);
    const [forecast, measured] = [1, 2].map(c => cells.slice(1).map(row => parseFloat(row[c].replaceAll(",", ""))));
    for (const [name, numbers] of [["forecast", forecast], ["measured", measured]]) {
      expect(`${name}: kinds add up`, Math.abs(numbers.slice(0, 5).reduce((a, b) => a + b, 0) - numbers[5]) < 0.01, true);
      expect(`${name}: times`, numbers.every(number => number >= 0) && numbers[0] > 0 && numbers[1] > 0 && numbers[2] > 0, true);
      if (EXPECTED.ranks === 1) expect(`${name}: communication of one rank`, numbers[3], 0);
    }
    expect("measured communication", measured[3] > 0, EXPECTED.ranks > 1);
    expect("measured step", Math.abs(measured[5] - model.ranks[0].step_us / 1e3) < 0.001, true);
    const canWait = EXPECTED.has_bubble && model.summary.cores >= EXPECTED.ranks;  // otherwise others use the core
    expect("forecast of the bubble", forecast[4] > 0 || !canWait, true);
  }
  for (const rank of model.ranks) {
    const inside = rank.events.filter(e => e.track === 0 && e.depth === 0).reduce((sum, e) => sum + e.dur, 0);
    expect(`${rank.place}: the events fit into the step`, inside <= rank.step_us * 1.001 + 1, true);
    expect(`${rank.place}: kinds`, ["forward", "backward", "optimizer"].map(kind => rank.times[kind] > 0), [true, EXPECTED.trains, EXPECTED.trains]);
    for (const e of rank.events) if (!(e.dur >= 0 && e.wait >= 0 && e.wait <= e.dur + 0.001 && e.own >= -0.01)) wrong[`${rank.place}: ${e.name}`] = "has wrong times";
  }
  by("depth").value = "16";
  by("depth").onchange();
  const box = boxes.filter(each => each.event.kind === "collective" && each.event.call?.peer < 0).at(-1);
  expect("collectives", box !== undefined, EXPECTED.ranks > 1);
  if (box) {
    by("lanes").scrollTop = Math.max(0, box.y - 20);
    const frame = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new MouseEvent("click", { clientX: frame.left + box.x + 1, clientY: frame.top + box.y + 5, bubbles: true }));
    expect("a click picks an event", picked !== null, true);
    pick(box.rank, box.event);
    expect("partners", partners.size, box.event.call.ranks.length);
    expect("details", by("details").children.length, 1 + box.event.call.ranks.length);
  }
  by("clock").value = "cpu";
  by("clock").onchange();
  expect("CPU time", boxes.length > 0 && boxes.every(each => Number.isFinite(each.x) && each.event.track === 0), true);
  by("clock").value = "wall";
  by("clock").onchange();
  by("in").click();
  expect("zoom", view.to - view.from < view.end, true);
  by("whole").click();
  const before = shape(), partnersBefore = model.partners.size;
  show(fromTrace(TRACE));
  const differs = shape().findIndex((events, r) => JSON.stringify(events) !== JSON.stringify(before[r]));
  expect("replay.json has the page's events", differs, -1);
  expect("replay.json has the page's partners", model.partners.size, partnersBefore);
  document.body.append(Object.assign(document.createElement("pre"),
    { hidden: true, textContent: `checked ${JSON.stringify(wrong)}` }));
}
setTimeout(check, 200);
"""


def check_page(run, expected, width, screenshots):
    """The problems of a run's page in a window of `width` pixels."""
    page = run / "replay.html"
    text = page.read_text()
    trace = (run / "replay.json").read_text().replace("</", "<\\/")
    check = CHECK.replace("EXPECTED", json.dumps(expected)).replace("</", "<\\/").replace("TRACE", trace)
    end = text.rindex("</script>")
    _, problems = run_check(page, f"{text[:end]}{check}{text[end:]}", width)
    if screenshots:
        chromium(page, max(width, 500), [f"--screenshot={screenshots / run.name}-{width}.png"])
    return [f"{run.name} at {width}: {problem}" for problem in problems]


def record(cleave, folder, name, words):
    """The run folder of a small run, and what its page must show."""
    run = folder / name
    (folder / "tiny.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 257, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}))
    (folder / "text.txt").write_text("a text of several words\n" * 100)
    launcher = [cleave, "launch", "-n", "2", "--"] if name == "processes" else []
    subprocess.run([*launcher, cleave, "train", "--model", str(folder / "tiny.json"), "--data", str(folder / "text.txt"), "--out", str(run),
                    "--steps", "3", "--seq-len", "8", "--batch-size", "4", "--record-step", str(STEP), *words],
                   check=True, stdout=subprocess.DEVNULL)
    ranks = 1
    for flag, value in zip(words, words[1:]):
        if flag in ("--tp", "--dp", "--pp"):
            ranks *= int(value)
    return run, {"ranks": ranks, "is_fsdp": "--fsdp" in words, "has_bubble": "--pp" in words, "questions": 0, "trains": True, **metrics_of(run, STEP)}


def metrics_of(run, step):
    row = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][step - 1]
    return {key: row[key] for key in ("loss", "step_ms", "comm_ms")}


def lesson(cleave, folder):
    """The run folder of a lesson, and what its page must show."""
    subprocess.run([cleave, "lesson", "pp", "--out", str(folder / "lesson")], check=True, stdout=subprocess.DEVNULL)
    run = folder / "lesson/run"
    return run, {"ranks": 4, "is_fsdp": False, "has_bubble": True, "questions": 3, "trains": True, **metrics_of(run, 3)}


def generation(cleave, folder, model):
    """The folder of a recorded step of generation by two processes, and what its page must show."""
    out = folder / "generate"
    subprocess.run([cleave, "launch", "-n", "2", "--", cleave, "generate", str(model), "--prompt", "a text", "--max-new-tokens", "4",
                    "--record-step", str(STEP), "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
    return out, {"ranks": 2, "is_fsdp": False, "has_bubble": False, "questions": 0, "trains": False, "loss": None, "step_ms": None, "comm_ms": None}


def check_trace(run):
    """The problems of replay.json: begin and end balanced per thread, times that never fall, both ends of every flow."""
    problems, depth, last, flows = [], {}, {}, {}
    for event in json.loads((run / "replay.json").read_text())["traceEvents"]:
        if event["ph"] in "MC":
            continue
        thread = (event["pid"], event["tid"])
        if event["ts"] < last.get(thread, 0):
            problems.append(f"time falls on {thread}")
        last[thread] = event["ts"]
        depth[thread] = depth.get(thread, 0) + {"B": 1, "E": -1}.get(event["ph"], 0)
        if depth[thread] < 0:
            problems.append(f"an end without a begin on {thread}")
        if event["ph"] in "sf":
            flows.setdefault(event["id"], []).append(event["ph"])
    problems += [f"{thread}: {count} begins without an end" for thread, count in depth.items() if count]
    problems += [f"flow {name} has the ends {ends}" for name, ends in flows.items() if sorted(ends) != ["f", "s"]]
    return [f"{run.name}: {problem}" for problem in problems]


def check_picture(run, kinds):
    """The problems of what tools/draw_replay.py draws: a lane for each rank, `kinds` in it, nothing beside the picture."""
    trace = json.loads((run / "replay.json").read_text())
    picture = ElementTree.fromstring(draw_replay.draw(trace))
    space = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in picture.iter(f"{space}text")]
    bars = [{key: rect.get(key) for key in ("x", "y", "width", "fill")} for rect in picture.iter(f"{space}rect") if rect.get("x")]
    problems = [f"no lane of {rank['place']}" for rank in trace["otherData"]["replay"]["ranks"] if rank["place"] not in texts]
    for kind in kinds:
        lanes = {bar["y"] for bar in bars if bar["fill"] == draw_replay.COLORS[kind] and float(bar["x"]) >= draw_replay.LABEL}
        if len(lanes) < len(trace["otherData"]["replay"]["ranks"]):
            problems.append(f"only {len(lanes)} lanes have a {kind}")
    if any(float(bar["x"]) + float(bar["width"]) > draw_replay.WIDTH + 0.2 for bar in bars):
        problems.append("a bar is beside the picture")
    return [f"picture of {run.name}: {problem}" for problem in problems]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cleave")
    parser.add_argument("--screenshots", type=pathlib.Path)
    options = parser.parse_args()
    if not shutil.which("chromium"):
        print("replay_check: skipped: chromium is not installed")
        return SKIPPED
    problems, count = [], 0
    with tempfile.TemporaryDirectory(prefix="cleave-replay-") as folder:
        folder = pathlib.Path(folder)
        runs = [record(options.cleave, folder, name, words) for name, words in RUNS.items()]
        for run, expected in [*runs, lesson(options.cleave, folder), generation(options.cleave, folder, runs[0][0])]:
            problems += check_trace(run) + check_picture(run, ("forward", "backward") if expected["trains"] else ("forward",))
            for width in (1280, 390):
                problems += check_page(run, expected, width, options.screenshots)
                count += 1
    print("\n".join(problems + [f"replay_check: {count} pages, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
