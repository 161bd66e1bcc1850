"""Shrinks a failing case to few flags and a simple model, by trying smaller cases that fail in the same way."""
import copy
import time

NEEDED = {"steps", "max-new-tokens", "command", "flags", "prompts", "texts", "chain", "at", "first", "family"}
NEEDED_OF_OTHER = {"save-every"}  # in the layout it is a flag like others
PARTS = ("layout", "math", "model", "data", "other")
MAX_TRIES, MAX_S = 60, 120


def without(case, path):
    smaller = copy.deepcopy(case)
    inner = smaller
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return smaller


def replaced(case, path, value):
    smaller = copy.deepcopy(case)
    inner = smaller
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return smaller


def without_keys(case, part, keys):
    return {**case, part: {key: value for key, value in case[part].items() if key not in keys}}


def needed(part):
    return NEEDED | NEEDED_OF_OTHER if part == "other" else NEEDED


def smaller_cases(case):
    """Yields cases without a whole part, without half of it, without one item, then with one smaller number."""
    removable = {part: [key for key in case.get(part, {}) if key not in needed(part)] for part in PARTS}
    for part, keys in removable.items():
        half = len(keys) // 2
        for some in (keys, keys[:half], keys[half:]) if len(keys) > 2 else ([key] for key in keys):
            yield without_keys(case, part, some)
    for part, keys in removable.items():
        for key in keys if len(keys) > 2 else ():
            yield without_keys(case, part, [key])
    for path, items in lists(case):
        for place in range(len(items)):
            if len(items) > 1:
                yield without(case, (*path, place))
    for path, value in numbers(case):
        for less in (1, value // 2, value - 1):
            if 0 < less < value:
                yield replaced(case, path, less)
    for key in list(case.get("other", {}).get("first", {})):
        yield without(case, ("other", "first", key))


def lists(case):
    """Yields (path, list) of the lists in a case: prompts and their ids, texts, steps of a conversion."""
    for key, value in case.get("other", {}).items():
        if isinstance(value, list):
            yield ("other", key), value
            for place, inner in enumerate(value):
                if isinstance(inner, list) and key == "prompts":
                    yield ("other", key, place), inner


def numbers(case):
    for part in ("layout", "math", "model", "data"):
        for key, value in case.get(part, {}).items():
            if isinstance(value, int) and not isinstance(value, bool) and value > 1 and key not in ("seed", "layers"):
                yield (part, key), value


def shrink(case, fails, max_tries=MAX_TRIES):
    """The smallest case found for which `fails(case)` holds. Calls `fails` at most `max_tries` times, for MAX_S seconds."""
    tries, start = 0, time.monotonic()
    found = True
    while found:
        found = False
        for smaller in smaller_cases(case):
            if tries == max_tries or time.monotonic() - start > MAX_S:
                return case
            tries += 1
            if fails(smaller):
                case, found = smaller, True
                break
    return case
