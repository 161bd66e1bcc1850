#!/usr/bin/env python3
"""Prints the measurements, skipped tests and failures of a test run, with the end of their output.

usage: test_table.py RESULTS.xml...     written by `ctest --output-junit RESULTS.xml`
"""
import re
import sys
import xml.etree.ElementTree as ElementTree

MEASURED = re.compile(r"^(?:measured: (.*)|(\d+ of \d+ rounds ended .*)|(\d+ inputs in total))$", re.MULTILINE)
REASON = re.compile(r": Skipped\n(.*)")
MOST_LINES = 40  # of the output of a failed test


def table(roots):
    """The lines of the table."""
    cases = [case for root in roots for case in root.iter("testcase")]
    skipped = [case for case in cases if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled")]
    failed = [case for case in cases if case.find("failure") is not None]
    lines = [f"{len(cases) - len(skipped) - len(failed)} passed, {len(failed)} failed, {len(skipped)} not run", "", "measured:"]
    for case in cases:
        for groups in MEASURED.findall(case.findtext("system-out") or ""):
            lines.append(f"  {case.get('name')}: {''.join(groups)}")
    lines += ["", "not run:"]
    for case in skipped:
        reason = REASON.search(case.findtext("system-out") or "")
        lines.append(f"  {case.get('name')}" + (f": {reason.group(1).strip()}" if reason else ""))
    # Last, because often only the end of a log is kept.
    lines += ["", "failed:"]
    for case in failed:
        output = (case.findtext("system-out") or "").strip().splitlines()
        lines += [f"  {case.get('name')}"] + [f"    {line}" for line in output[-MOST_LINES:]]
    return lines


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print("\n".join(table([ElementTree.parse(path).getroot() for path in sys.argv[1:]])))
