"""A minimal C++ parser for the checks in this folder: blanks comments and literals, and splits a file into scopes."""
import dataclasses
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent

TOKEN = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)'
    r'|(?P<raw>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)")'
    r'|(?P<string>"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])\'(?:\\.|[^\'\\\n])*\')'
    r'|(?P<directive>^[ \t]*#(?:\\\n|[^\n])*)',
    re.DOTALL | re.MULTILINE)


def tracked(*patterns):
    """Paths below the root of all matching files that git tracks or does not ignore."""
    out = subprocess.run(["git", "-c", "core.quotepath=off", "ls-files", "-co", "--exclude-standard", "-z", "--", *patterns],
                         cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in set(out.split("\0")) if path and (ROOT / path).is_file())


def read(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def blank(text):
    """The code with comments, literals and preprocessor lines replaced by spaces; every character keeps its position."""
    return TOKEN.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


@dataclasses.dataclass
class Statement:
    line: int              # first line
    end: int               # last line
    text: str              # the code, up to a brace
    scope: "Scope" = None  # the scope that the brace opens


@dataclasses.dataclass
class Scope:
    kind: str  # "namespace", "class", "enum", "function", "value"
    open_line: int = 1
    parent: "Scope" = None
    close_line: int = 0
    statements: list = dataclasses.field(default_factory=list)


CLASS_HEAD = re.compile(r"^\s*(?:template\s*<.*>\s*)?(?:typedef\s+)?(?:class|struct|union)\b(?![^{]*\)\s*(?:const)?\s*$)", re.DOTALL)


def kind_of(head, parent):
    if re.search(r"\bnamespace\b", head) or re.fullmatch(r'\s*extern\s*', head):
        return "namespace"
    if parent.kind in ("function", "value", "enum"):
        return "value"
    if re.match(r"\s*enum\b", head):
        return "enum"
    if CLASS_HEAD.match(head):
        return "class"
    # An initializer, `int a[] = {` or `Type name{`, has no parameter list before the brace, or an `=` outside it.
    bare = re.sub(r"\([^()]*\)", "()", re.sub(r"\([^()]*\)", "", head))
    if "(" not in head or re.search(r"(?<![=!<>+\-*/%&|^])=(?!=)\s*$", bare):
        return "value"
    return "function"


ACCESS = re.compile(r"\s*(public|private|protected)\s*")


def parse(text):
    """The file's outermost Scope, with its declarations and their scopes."""
    code = blank(text)
    scope = root = Scope("namespace")
    start, begin, line, depth = 0, 1, 1, 0  # of the statement: index, line; depth: open parentheses
    for index, char in enumerate(code):
        if char == "\n":
            line += 1
        if char.isspace():
            continue
        if not code[start:index].strip():
            begin = line
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif depth > 0:
            continue
        elif char == ":" and scope.kind == "class" and ACCESS.fullmatch(code[start:index]):
            scope.statements.append(Statement(line, line, code[start:index].strip() + ":"))
            start = index + 1
        elif char == "{":
            inner = Scope(kind_of(code[start:index], scope), line, scope)
            scope.statements.append(Statement(begin, line, code[start:index], inner))
            scope, start = inner, index + 1
        elif char == "}" and scope.parent is not None:
            scope.close_line = line
            scope, start = scope.parent, index + 1
            scope.statements[-1].end = line
        elif char == ";":
            if code[start:index].strip() and scope.kind in ("namespace", "class"):
                scope.statements.append(Statement(begin, line, code[start:index]))
            start = index + 1
    return root


def walk(scope):
    """Yields every statement in `scope` and its inner scopes, outermost first, with its enclosing scope."""
    for statement in scope.statements:
        yield statement, scope
        if statement.scope is not None:
            yield from walk(statement.scope)
