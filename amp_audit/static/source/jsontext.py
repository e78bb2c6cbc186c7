"""Where things stand in the text of a JSON document, which ``json`` itself forgets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_JSON_SPACE = re.compile(r"[ \t\r\n]*")


def skip_space(text: str, place: int) -> int:
    """The place of the next character that is no white space."""
    match = _JSON_SPACE.match(text, place)
    return match.end() if match is not None else place


DECODER = json.JSONDecoder()


def members(text: str, place: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The members of the object at a place: name, and where the value begins and ends."""
    place = skip_space(text, place + 1)
    while text[place] != "}":
        name, place = DECODER.raw_decode(text, place)
        begin = skip_space(text, skip_space(text, place) + 1)
        _, place = DECODER.raw_decode(text, begin)
        yield name, (begin, place)
        place = skip_space(text, place)
        place = skip_space(text, place + 1) if text[place] == "," else place


def items_of(text: str, place: int) -> Iterator[int]:
    """Where the items of the array at a place begin."""
    place = skip_space(text, place + 1)
    while text[place] != "]":
        yield place
        _, place = DECODER.raw_decode(text, place)
        place = skip_space(text, place)
        place = skip_space(text, place + 1) if text[place] == "," else place
