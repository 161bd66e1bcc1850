#!/usr/bin/env python3
"""Changes single lines, one at a time, and checks whether the tests of their module fail.

usage: mutation.py [--torch] [--seed N] [--skip N] [--count N] [FILE...]

Files: sources of cleave/comm, cleave/format, cleave/file and the like, without libtorch (default: comm and format), or
of cleave/checkpoint with --torch (needs CLEAVE_LIBTORCH and builds all of it).

A line with a comparison, a boolean or arithmetic operator, a condition, a check, a returned value, a call or an assignment
is drawn; one of its possible changes is applied in a copy of the tree below build/mutation (the working tree is never
changed), and the tests of the module are built and run. A failed test must fail twice, and pass with the unchanged library,
so that failures of a busy machine do not count; a crash or an exceeded deadline counts as noticed. A change that does not
compile is drawn again. Not changed: texts of messages (arguments of str, log_*, throw, CLEAVE_BUG, and those of CLEAVE_CHECK
after its condition), reserve, pauses and sleeps, static_assert, constants at namespace scope. A change may still be
equivalent to the original: survivors are listed for review.

A changed line may kill or delete anything, so the tests run in separate namespaces without other processes, with only a
loopback network, a read-only file system and an empty /tmp: that needs root, the program `ip`, and a tree that is not below
/tmp. Resume an interrupted run with --skip, the number of its last change.
"""
import argparse
import dataclasses
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import cpp_source

FOLDER = cpp_source.ROOT / "build/mutation"
# The test binaries of a module, quickest first.
TESTS = {"comm": ["comm_test"], "format": ["format_test", "hostile_test"], "file": ["file_test", "format_test"],
         "text": ["text_test", "hostile_test"], "base": ["base_test"], "checkpoint": ["checkpoint_test"]}
SHARDS = 4  # parallel processes of a test binary; most of them wait most of the time
# Tests whose results depend on chance or on the machine, and random versions of other tests.
UNSTEADY = "-Full/*:*Full.*:Differential*:Fault.ComparisonOfCalls*"

# A separate network too: tests choose loopback addresses by their pids, which are the same in every shard.
ALONE = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net", "sh", "-c",
         'ip link set lo up && mount -o remount,bind,ro / && mount -t tmpfs -o size=3g none /tmp && ulimit -v 33554432 && '
         '"$@"; exit $?', "sh"]

WORDS = re.compile(r"\b(str|log_info|log_warning|log_error|throw|CLEAVE_BUG|static_assert)\b")
LEFT_OUT = re.compile(r"reserve\(|sleep_for|yield\(|spin_pause|prefetch|static_assert|\btemplate\b|\boperator\b")
SWAPS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
         (" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "), (" * ", " / "), (" / ", " * "),
         (" % ", " / "), (" += ", " -= "), (" -= ", " += "), (" << ", " >> "), (" >> ", " << "), (" & ", " | ")]


# Returned values that are already empty, or that have other changes.
EMPTY = re.compile(r"\{\}|true|false|0|nullptr|std::nullopt|\w+(\(\)|\{\})|\*this|\"\"")


@dataclasses.dataclass
class Change:
    path: str
    line: int
    before: str
    after: str


def close_of(code, start):
    """The index where the parenthesis at `start` closes, or the text's end."""
    depth = 0
    for index in range(start, len(code)):
        depth += (code[index] == "(") - (code[index] == ")")
        if depth == 0:
            return index
    return len(code)


def comma_of(code, start, end):
    """The first comma between `start` and `end` outside of inner parentheses and braces, or `end`."""
    depth = 0
    for index in range(start, end):
        depth += (code[index] in "([{") - (code[index] in ")]}")
        if code[index] == "," and depth == 0:
            return index
    return end


def blank_words(code):
    """The code without the texts of messages; every character keeps its position."""
    def fill(begin, end):
        return re.sub(r"[^\n]", " ", code[begin:end])

    for match in WORDS.finditer(code):
        end = code.find(";", match.end()) if match.group() == "throw" else close_of(code, match.end())
        if match.group() == "throw" or code[match.end():match.end() + 1] == "(":
            code = code[:match.end()] + fill(match.end(), end) + code[end:]
    for match in re.finditer(r"\b(CLEAVE_CHECK|check)\(", code):
        end = close_of(code, match.end() - 1)
        comma = comma_of(code, match.end(), end)
        code = code[:comma] + fill(comma, end) + code[end:]
    return code


def lines_in_functions(text):
    """Line numbers inside functions."""
    root, found = cpp_source.parse(text), set()

    def visit(scope):
        if scope.kind == "function":
            found.update(range(scope.open_line, scope.close_line + 1))
            return
        for statement in scope.statements:
            if statement.scope is not None:
                visit(statement.scope)

    visit(root)
    return found


def changed_lines(line, code):
    """The possible changes of `line`; `code` is the line without texts of messages."""
    out = []
    for old, new in SWAPS:
        for match in re.finditer(re.escape(old), code):
            out.append(line[:match.start()] + new + line[match.end():])
    for match in re.finditer(r"\b(true|false)\b", code):
        out.append(line[:match.start()] + ("false" if match.group() == "true" else "true") + line[match.end():])
    for match in re.finditer(r"\b(if|while) \(", code):
        end = close_of(code, match.end() - 1)
        if end < len(code) and ";" not in code[match.end():end] and " = " not in code[match.end():end]:
            out.append(f"{line[:match.end()]}!({line[match.end():end]}){line[end:]}")
    for match in re.finditer(r"\b(CLEAVE_CHECK|check)\(", code):
        end = comma_of(code, match.end(), len(code.rstrip()))
        if line[end:end + 1] == ",":
            out.append(f"{line[:match.end()]}({line[match.end():end]}) || true{line[end:]}")
    match = re.fullmatch(r"(.*\breturn )(\S.*);\s*", code)
    if match and not EMPTY.fullmatch(match.group(2)):
        head, value = line[:match.end(1)], line[match.end(1):match.end(2)]
        is_truth = re.search(r" (<|>|<=|>=|==|!=|&&|\|\|) |^!", value)
        out.append(f"{head}!({value});" if is_truth else f"{head}{{}};")
    out += removed(line, code)
    return out


def removed(line, code):
    """The line with its call or assignment removed, if it is a complete one."""
    whole = code.count("(") == code.count(")") and not re.match(r"\s*(return|throw|else|case|using|if|for|while|CLEAVE_)\b", code)
    call = re.fullmatch(r"\s*(?:[\w\]\[]+(?:\(\))?(?:::|\.|->))*\w+\(.*\);\s*", code)
    assignment = re.fullmatch(r"\s*[\w.\[\]\->*:()]+ (?:=|\+=|-=|\|=) .*;\s*", code)
    step = re.fullmatch(r"\s*(?:\+\+|--)[\w.\->\[\]]+;\s*", code)
    return [re.match(r"\s*", line).group() + ";"] if whole and (call or assignment or step) else []


def changes_of(path):
    """The possible changes of every line of `path` that can be changed."""
    text = cpp_source.read(path)
    inside = lines_in_functions(text)
    code = blank_words(cpp_source.blank(text)).split("\n")
    starts = starts_of_statements(code)
    found = []
    for index, line in enumerate(text.split("\n")):
        if index + 1 not in inside or LEFT_OUT.search(starts[index] + " " + code[index]):
            continue
        is_whole = starts[index] == code[index].strip()
        options = [after for after in changed_lines(line, code[index]) if is_whole or after.strip() != ";"]
        if options:
            found.append([Change(path, index + 1, line, after) for after in dict.fromkeys(options)])
    return found


def starts_of_statements(code):
    """For every line, the first line of its statement."""
    out, start, is_new = [], "", True
    for line in code:
        text = line.strip()
        if is_new and text:
            start = text
        out.append(start)
        if text:
            is_new = text[-1] in ";{}:"
    return out


def without(tests):
    return f" without {' '.join(tests)}" if tests else ""


class Build:
    def __init__(self, modules, torch, deadline_s):
        self.tree = FOLDER / ("torch" if torch else "core")
        # At the same depth as the release build, to reuse its objects in the compiler's cache.
        self.folder = self.tree / "build/release"
        self.deadline_s = deadline_s
        self.tests = sorted({test for module in modules for test in TESTS[module]})
        self.unchanged = self.folder / "unchanged"
        self.torch, self.names = torch, {}

    def copy_tree(self):
        """Copies files that differ from the copy; they are then newer than all objects built from changed lines."""
        tracked = set(cpp_source.tracked("*"))
        for path in self.tree.rglob("*"):
            inside = path.relative_to(self.tree)
            if inside.parts[0] != "build" and path.is_file() and str(inside) not in tracked:
                path.unlink()
        for path in tracked:
            source, copy = cpp_source.ROOT / path, self.tree / path
            if not copy.is_file() or copy.read_bytes() != source.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy)

    def prepare(self):
        self.copy_tree()
        flags = [f"-DCLEAVE_LIBTORCH={os.environ.get('CLEAVE_LIBTORCH', '')}",
                 f"-DCMAKE_CXX_COMPILER_LAUNCHER=python3;{pathlib.Path(__file__).resolve()};--compile"] if self.torch else [
                     "-DCMAKE_BUILD_TYPE=", "-DCLEAVE_TORCH=OFF", "-DCMAKE_CXX_FLAGS=-O1 -D_GLIBCXX_ASSERTIONS",
                     "-DCLEAVE_WARNINGS_AS_ERRORS=OFF"]
        subprocess.run(["cmake", "-S", str(self.tree), "--preset", "release", "-B", str(self.folder),
                        "-DCLEAVE_EXAMPLES=OFF", *flags], check=True, stdout=subprocess.DEVNULL)
        if not self.compile(*self.tests):
            sys.exit("mutation: the unchanged tree does not compile")
        shutil.rmtree(self.unchanged, ignore_errors=True)
        self.unchanged.mkdir()
        for library in self.folder.glob("libcleave*.so*"):
            shutil.copy2(library, self.unchanged, follow_symlinks=False)
        for test in self.tests:
            self.names[test] = self.names_of(test)
            began = time.monotonic()
            failed, left_out = self.run(test)
            print(f"unchanged: {test} in {time.monotonic() - began:.0f} s{without(left_out)}", flush=True)
            if failed:
                sys.exit(f"mutation: {test} fails without any change: {failed}")

    def compile(self, *targets):
        return subprocess.run(["ninja", "-C", str(self.folder), "-j1", *targets], capture_output=True).returncode == 0

    def names_of(self, test):
        listed = subprocess.run([str(self.folder / "tests" / test), "--gtest_list_tests", f"--gtest_filter={UNSTEADY}"],
                                check=True, capture_output=True, text=True).stdout
        suite, names = "", []
        for line in listed.splitlines():
            words = line.split("#")[0].strip()
            if line.startswith("  "):
                names.append(suite + words)
            elif words.endswith("."):
                suite = words
        return names

    def run(self, test):
        """The test that noticed the change, or "", and the tests that failed by chance."""
        status, suspects = "", []
        for is_quick in (True, False):  # up to the first failure, which usually decides; then all others
            names = [name for name in self.names[test] if name not in suspects]
            # Not by GTEST_TOTAL_SHARDS, which the processes that tests start would inherit.
            status, failed = self.execute(test, [names[index::SHARDS] for index in range(SHARDS)], is_quick)
            if not status or not failed:
                break
            status, again = self.execute(test, [failed], False)
            if status and not again:
                break
            by_itself = self.execute(test, [again], False, self.unchanged)[1] if again else []
            guilty = [name for name in again if name not in by_itself]
            if guilty:
                return guilty[0], suspects
            suspects += failed
            status = ""
        return status, suspects

    def execute(self, test, shards_names, is_quick, libraries=""):
        """The kind of failure, or "", and the failed tests; with `is_quick` only up to the first failed shard."""
        shards = []
        for names in shards_names:
            output = tempfile.TemporaryFile("w+", errors="replace")
            command = [*ALONE, str(self.folder / "tests" / test), "--gtest_brief=1", f"--gtest_fail_fast={int(is_quick)}",
                       "--gtest_filter=" + ":".join(names)]
            # In a new session: kill(0, ...) in a namespace kills the whole process group, also outside of the namespace.
            shards.append((output, subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=output,
                                                    stdin=subprocess.DEVNULL, start_new_session=True,
                                                    env={**os.environ, "LD_LIBRARY_PATH": str(libraries)})))
        for _ in range(int(self.deadline_s * 10)):  # counts polls, not time: suspending this script is not a hang
            if all(process.poll() is not None for _, process in shards):
                break
            if is_quick and any(process.poll() for _, process in shards):
                break
            time.sleep(0.1)
        status, failed = "", []
        for output, process in shards:
            if process.poll() is None:
                status = status or "the deadline"
            elif process.returncode:
                output.seek(0)
                names = re.findall(r"^\[  FAILED  \] ([\w./]+)", output.read(), re.MULTILINE)
                status, failed = f"exit {process.returncode}", failed + names
        for output, process in shards:
            process.kill()
            process.wait()
            output.close()
        return status, list(dict.fromkeys(failed))

    def judge(self, change):
        """The test that noticed the change, or "", and the tests that were left out; None if it does not compile."""
        path = self.tree / change.path
        text = path.read_text(encoding="utf-8")
        lines = text.split("\n")
        assert lines[change.line - 1] == change.before
        lines[change.line - 1] = change.after
        try:
            path.write_text("\n".join(lines), encoding="utf-8")
            # The tests link the shared library, so only the library is rebuilt.
            if not self.compile("cleave_torch" if self.torch else "cleave_core"):
                return None
            doubts = []
            for test in TESTS[change.path.split("/")[1]]:
                failed, left_out = self.run(test)
                if failed:
                    return failed, []
                doubts += left_out
            return "", doubts
        finally:
            path.write_text(text, encoding="utf-8")


def compile_one(words):
    """Compiles as in the release build, but without -Werror: a changed line may leave something unused."""
    if "/cleave/checkpoint/" in words[-1]:
        words = [*words, "-Wno-error"]
    os.execvp("ccache", ["ccache", *words])


def main():
    if sys.argv[1:2] == ["--compile"]:
        compile_one(sys.argv[2:])
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--deadline", type=float, default=120, help="seconds for one test binary")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--list", action="store_true", help="only list the changes that would be tried")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    files = [path for path in arguments.files or cpp_source.tracked("cleave/comm/*.cc", "cleave/format/*.cc")
             if not path.endswith("_test.cc")]
    candidates = [change for path in files for change in changes_of(path)]
    draw = random.Random(arguments.seed)
    draw.shuffle(candidates)
    changes = [draw.choice(options) for options in candidates]
    print(f"{len(changes)} lines of {len(files)} files can be changed", flush=True)
    if arguments.list:
        for change in changes[arguments.skip:][:arguments.count]:
            print(f"{change.path}:{change.line}\n  {change.before.strip()}\n  {change.after.strip()}")
        return 0
    build = Build({path.split("/")[1] for path in files}, arguments.torch, arguments.deadline)
    build.prepare()
    survivors, tried, broken = [], 0, 0
    for number, change in list(enumerate(changes, 1))[arguments.skip:]:
        if tried == arguments.count:
            break
        found = build.judge(change)
        if found is None:
            broken += 1
            continue
        tried += 1
        noticed_by, left_out = found
        print(f"{number} {change.path}:{change.line}: {'noticed by ' + noticed_by if noticed_by else 'SURVIVED'}{without(left_out)}\n"
              f"  before: {change.before.strip()}\n  after:  {change.after.strip()}", flush=True)
        if not noticed_by:
            survivors.append(change)
    for change in survivors:
        print(f"survivor {change.path}:{change.line}\n  before: {change.before.strip()}\n  after:  {change.after.strip()}")
    print(f"mutation: {tried} changes tried, {tried - len(survivors)} noticed, {len(survivors)} survived, "
          f"{broken} did not compile; to repeat: tools/mutation.py --seed {arguments.seed} --skip {arguments.skip} "
          f"--count {tried} {'--torch ' if arguments.torch else ''}{' '.join(arguments.files)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
