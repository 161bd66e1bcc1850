#!/usr/bin/env python3
"""Draws the timeline of a recorded step as SVG, for pages: a lane for each rank, in wall time.

usage: draw_replay.py REPLAY.json OUT.svg      REPLAY.json: of `cleave train --record-step` or `cleave lesson`
"""
import html
import json
import sys

COLORS = {"forward": "#6ea8f0", "recompute": "#b79be6", "backward": "#f0a860", "optimizer": "#d0bd48", "collective": "#46b094",
          "waiting": "#e3b7bd", "other": "#cfd6df"}
WIDTH, LABEL, LANE, GAP, TOP = 960, 190, 26, 8, 26
NARROWEST = 0.6  # pixels: narrower pieces are joined with the next


def slices(events):
    """[(kind, begin, end)] of a rank's thread: each moment once, for the innermost event; waiting apart from transfer."""
    out, stack, at = [], [], 0

    def until(time):
        nonlocal at
        if stack and time > at:
            kind, wait_end = stack[-1]
            middle = min(max(wait_end, at), time)
            out.extend([("waiting", at, middle), (kind, middle, time)])
        at = max(at, time)

    for event in events:
        until(event["ts"])
        if event["ph"] == "B":
            kind = event["cat"] if event["cat"] in COLORS else "waiting" if event["cat"] == "wait" else "other"
            stack.append((kind, event["ts"] + event.get("args", {}).get("wait_us", 0)))
        else:
            stack.pop()
    return [piece for piece in out if piece[2] > piece[1]]


def joined(pieces, scale):
    """The pieces in pixels; narrow ones take the kind of the longest of those that they are joined with."""
    out, times, begin, end = [], {}, None, None
    for kind, a, b in pieces:
        if begin is not None and a * scale - end > NARROWEST:  # a gap
            out.append((max(times, key=times.get), begin, end))
            times, begin = {}, None
        begin = a * scale if begin is None else begin
        end = b * scale
        times[kind] = times.get(kind, 0) + b - a
        if end - begin >= NARROWEST:
            out.append((max(times, key=times.get), begin, end))
            times, begin = {}, None
    if begin is not None:
        out.append((max(times, key=times.get), begin, end))
    merged = []
    for kind, a, b in out:
        if merged and merged[-1][0] == kind and a - merged[-1][2] < NARROWEST:
            merged[-1] = (kind, merged[-1][1], b)
        else:
            merged.append((kind, a, b))
    return merged


def draw(trace):
    summary = trace["otherData"]["replay"]
    lanes = {rank["rank"]: [] for rank in summary["ranks"]}
    for event in trace["traceEvents"]:
        if event["ph"] in "BE" and event["tid"] == 0:
            lanes[event["pid"]].append(event)
    end = max(event["ts"] for events in lanes.values() for event in events)
    scale = (WIDTH - LABEL) / end
    title = summary["title"].rsplit("/", 1)[-1]  # without the folder of the model
    height = TOP + len(lanes) * (LANE + GAP) + 24
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
             f'<text x="4" y="16" fill="#1b1f24">{html.escape(title)}: {end / 1e3:.1f} ms</text>']
    for lane, rank in enumerate(summary["ranks"]):
        y = TOP + lane * (LANE + GAP)
        lines.append(f'<text x="4" y="{y + 17}" fill="#1b1f24">{html.escape(rank["place"])}</text>')
        for kind, begin, stop in joined(slices(lanes[rank["rank"]]), scale):
            lines.append(f'<rect x="{LABEL + begin:.1f}" y="{y}" width="{stop - begin:.1f}" height="{LANE}" fill="{COLORS[kind]}"/>')
    x = 4
    for kind, color in COLORS.items():
        lines.append(f'<rect x="{x}" y="{height - 18}" width="12" height="12" fill="{color}"/>'
                     f'<text x="{x + 17}" y="{height - 8}" fill="#5a6472">{kind}</text>')
        x += 36 + 7 * len(kind)
    return "\n".join(lines + ["</svg>\n"])


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as source:
        picture = draw(json.load(source))
    with open(sys.argv[2], "w", encoding="utf-8") as target:
        target.write(picture)


if __name__ == "__main__":
    main()
