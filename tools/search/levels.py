"""The cases of a test level: CLEAVE_TEST_LEVEL, which ./run test sets."""
import os

import cases

COUNTS = {"full": 500, "release": 5000}


def indexes(seed):
    return indexes_with_every_kind(seed, COUNTS.get(os.environ.get("CLEAVE_TEST_LEVEL"), 60))


def indexes_with_every_kind(seed, count):
    """The first `count` indexes of a seed, of which the last give way to the first of each absent kind."""
    kinds = [cases.draw_kind(cases.rng_of(seed, index)) for index in range(count)]
    kept, later = list(range(count)), []
    index = count
    while absent := set(cases.KINDS) - {kinds[place] for place in kept + later}:
        kinds.append(cases.draw_kind(cases.rng_of(seed, index)))
        if kinds[index] in absent:
            later.append(index)
            # The last case of a kind that has another one.
            kept.remove(next(place for place in reversed(kept) if [kinds[other] for other in kept].count(kinds[place]) > 1))
        index += 1
    return kept + later
