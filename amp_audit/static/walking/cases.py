"""What is known of conditions: what those that were decided say of others, and of several paths that have met."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from amp_audit.static.walking.values import MOST_KEPT, options

ANY = "*"
"""Among the conditions that were asked for: any of them."""
MAX_CASES = 8
Case = frozenset[tuple[str, bool]]
"""Conditions that were decided together."""


def told(key: str, decided: Mapping[str, bool]) -> bool | None:
    """What decided conditions say of one: itself, None-ness and truth, and equality with other constants."""
    found = decided.get(key)
    if found is not None:
        return found
    if key.endswith(" is None"):
        return False if decided.get(key.removesuffix(" is None")) else None
    if decided.get(f"{key} is None"):
        return False
    subject, wanted = options(key)
    return _among(subject, wanted, decided) if subject else None


def _among(subject: str, wanted: frozenset[str], decided: Mapping[str, bool]) -> bool | None:
    """Whether a value is one of some, by what has been decided of the values it is among, or is not."""
    possible: frozenset[str] | None = None
    excluded = frozenset[str]()
    for name, value in decided.items():
        if not name.startswith(subject):
            continue
        other, values = options(name)
        if other == subject and value:
            possible = values if possible is None else possible & values
        elif other == subject:
            excluded |= values
    if possible is None:
        return False if wanted <= excluded else None
    left = possible - excluded
    return True if left and left <= wanted else False if left.isdisjoint(wanted) else None


def simplified(cases: set[Case]) -> tuple[Case, ...]:
    """Cases that tell: two that differ in the truth of one condition only are one without it, and what is left open by
    one of them, or has too many sides, is not known.
    """
    return _simplified(frozenset(cases))


@functools.lru_cache(maxsize=MOST_KEPT)
def _simplified(cases: frozenset[Case]) -> tuple[Case, ...]:
    while pair := next(_opposed(cases), None):
        case, item = pair
        cases = (cases - {case, (case - {item}) | {(item[0], not item[1])}}) | {case - {item}}
    return _ordered(cases) if len(cases) <= MAX_CASES and frozenset() not in cases else ()


def _opposed(cases: frozenset[Case]) -> Iterator[tuple[Case, tuple[str, bool]]]:
    """A case, and a condition in it whose other side stands in an otherwise equal one, which is as long. In which order
    they are taken decides what is left, and is the same in every process.
    """
    sizes = Counter(map(len, cases))
    for case in _ordered(case for case in cases if sizes[len(case)] > 1):
        for item in sorted(case):
            if (case - {item}) | {(item[0], not item[1])} in cases:
                yield case, item


def _ordered(cases: Iterable[Case]) -> tuple[Case, ...]:
    return tuple(sorted(cases, key=sorted))
