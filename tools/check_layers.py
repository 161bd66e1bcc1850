#!/usr/bin/env python3
"""A module may include only modules before it in ORDER. The modules before torch_internals, and cli, may not reach libtorch through any
chain of headers.

usage: check_layers.py              check the sources
       check_layers.py --program F  check that the program F and its libraries need no libtorch to start
Tests may include later modules (an oracle often needs one), but not libtorch if their module may not.
"""
import re
import subprocess
import sys

import cpp_source

ORDER = ("base file text tokenizer chat format comm report runtime torch_internals mesh layout kernels nn optim pipeline"
         " parallel model checkpoint data planner train generate verify bench compat cli").split()
FREE_OF_TORCH = set(ORDER[:ORDER.index("torch_internals")]) | {"cli"}
TORCH = re.compile(r"(torch|ATen|c10|caffe2|cuda|nccl)[/.]|.*\bcuda_runtime")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def includes(path):
    """(line, included name) of each #include in a file."""
    text = cpp_source.read(path)
    return [(text.count("\n", 0, match.start()) + 1, match.group(2)) for match in INCLUDE.finditer(text)]


def module_of(path):
    parts = path.split("/")
    return parts[1] if parts[0] == "cleave" and len(parts) > 2 else None


def torch_chain(name, graph, seen):
    """The chain of includes from `name` to libtorch, or None."""
    if TORCH.match(name):
        return [name]
    if name in seen or name not in graph:
        return None
    seen.add(name)
    for _, inner in graph[name]:
        chain = torch_chain(inner, graph, seen)
        if chain:
            return [name] + chain
    return None


def check_sources():
    graph = {path: includes(path) for path in cpp_source.tracked("*.h", "*.cc", "*.cu")}
    problems = []
    for path, lines in graph.items():
        module = module_of(path)
        if module is None:
            continue
        if module not in ORDER:
            problems.append(f"{path}:1: module '{module}' is not in the order of modules; known: {' '.join(ORDER)}")
            continue
        is_test = path.endswith("_test.cc")
        for line, name in lines:
            other = module_of(name)
            if other in ORDER and ORDER.index(other) > ORDER.index(module) and not is_test:
                problems.append(f"{path}:{line}: {module} includes {name}, but {other} comes after {module}")
            if name.startswith("cleave/") and name not in graph:
                problems.append(f"{path}:{line}: {name} does not exist")
            if module in FREE_OF_TORCH:
                chain = torch_chain(name, graph, set())
                if chain:
                    problems.append(f"{path}:{line}: {module} must not reach libtorch: {' -> '.join(chain)}")
    return problems, len(graph)


def check_program(program):
    # All libraries that the dynamic linker loads, directly or through other libraries.
    text = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    libraries = [line.split()[0] for line in text.splitlines()]
    return [f"{program}:0: needs {library} to start" for library in libraries
            if re.match(r"lib(torch|c10|cleave\.so)", library)], len(libraries)


def main():
    if sys.argv[1:2] == ["--program"] and len(sys.argv) == 3:
        problems, count = check_program(sys.argv[2])
    elif len(sys.argv) == 1:
        problems, count = check_sources()
    else:
        raise SystemExit(__doc__)
    print("\n".join(problems + [f"check_layers: {count} files, {len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
