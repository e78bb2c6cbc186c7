"""Whether a file can matter at all, decided on its bytes: two sieves, so that most files are never parsed.

The first looks for a word of mixed precision anywhere. The second leaves out comments and docstrings, and asks more of
the names of dtypes: libraries name float16 in tables and tests of dtypes, which no rule speaks of. They count where
something is made of them (a cast, an argument, a default, a value), or in code that trains.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Iterator

from amp_audit.records import record
from amp_audit.rulebook import Rulebook
from amp_audit.static.source.suppress import MARK

_STRONG = (
    rb"autocast|GradScaler|grad_scaler|unscale_|amp\b(?<!\wamp)|apex\b|mixed_precision|deepspeed|lightning"
    rb"|accelerate\b|Accelerator\b|AmpOptimWrapper\b|caler\s*\.\s*(?:scale|step|update)\b"
)
"""Words that any rule may rest on; those of ``call`` detectors are added from the rule files.

Each alternative begins with a letter as such: Python's regular expressions then skip ahead ten times faster.
"""
_WEAK = rb"float16|half\b|HalfTensor|Half\b|fp16|bf16|accelerat"

TRAINING = re.compile(rb"backward\b|step\s*\(|clip_grad|zero_grad|autograd|state_dict|torch\s*\.\s*save")
"""What code does that trains."""

_DTYPE = rb"[\"']?(?:\w+\s*\.\s*)?(?:b?float16|half)\b"
_USED = (
    rb"backward\s*\(|zero_grad|(?:half|bfloat16)\s*\(\s*\)|HalfTensor"
    rb"|(?<![=!<>])=\s*" + _DTYPE + rb"|\w\(\s*" + _DTYPE + rb"|(?:return|else|or|lambda\s*:)\s+" + _DTYPE + rb"|"
    rb"(?:to|type|cast|as_tensor|tensor|full|zeros|ones|empty|randn|rand)\s*\([^()]{0,200}(?:\([^()]{0,200}\)[^()]{0,200}){0,3}"
    + _DTYPE
    + rb"|"
    rb"import[^\n;]{0,300}(?:float16|half)\b"
)
_NO_CODE = re.compile(
    rb"^([^'\"#\n]*)#[^\n]*"
    rb"|^[ \t]*[rRuU]?(?:\"\"\".*?\"\"\"|'''.*?''')",
    re.M | re.S,
)
_OF_TORCH = rb"torch\s*\.\s*%(name)s\b|import[^\n]{0,300}[ ,(]%(name)s\b"
"""A name that Python itself has says nothing alone: ``compile``."""
_ELSEWHERE = re.compile(rb"^[ \t]*(?:import|from)[ \t]+(?:paddle|mindspore|jittor|megengine|mxnet)\b", re.M)
"""Imports of frameworks whose scalers have other ways: what imports one of them, and no torch, is none of ours."""

_MARK = MARK.encode()


@record(frozen=True, slots=True)
class Screen:
    """The words that any of the rules in force may rest on.

    ``strong`` ones are reason enough to read a file; of the others something must be made (``used``).
    """

    any: re.Pattern[bytes]
    strong: re.Pattern[bytes]
    used: re.Pattern[bytes]

    def matters(self, data: bytes) -> bool:
        """Whether a rule could speak in a file with this content."""
        if self.any.search(data) is None:
            return False
        if _MARK in data or not _is_utf8(data):
            return True  # a comment that silences nothing is a finding too, and so may be what cannot be decoded
        code = _NO_CODE.sub(rb"\1", data)
        if _ELSEWHERE.search(code) is not None and b"torch" not in code:
            return False
        if self.strong.search(code) is not None:
            return True
        return self.any.search(code) is not None and self.used.search(code) is not None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def screen(book: Rulebook) -> Screen:
    """The screen that the rules of a book ask for."""
    called = _words(_telling_name(target) for target in _targets(book, "call"))
    assigned = _words(target.rpartition(".")[2] for target in _targets(book, "constant"))
    strong = re.compile(_STRONG + called)
    return Screen(re.compile(strong.pattern + rb"|" + _WEAK), strong, re.compile(_USED + assigned))


def _targets(book: Rulebook, kind: str) -> Iterator[str]:
    return (target for _, detector in book.detectors("static", kind) for target in detector.targets)


def _words(names: Iterable[str]) -> bytes:
    wanted = sorted({name for name in names if name.isidentifier() and not name.startswith("_")})
    shapes = ((_OF_TORCH if hasattr(builtins, name) else rb"%(name)s\b", name.encode()) for name in wanted)
    return b"".join(b"|" + shape % {b"name": name} for shape, name in shapes)


EVERYTHING = Screen(*[re.compile(b"")] * 3)
"""Lets every file through."""


def _telling_name(target: str) -> str:
    """The word that a file must hold to call ``target``: of a method its class's, of another library the library's;
    the vocabulary has both."""
    if not target.startswith("torch."):
        return target.partition(".")[0]
    owner, _, name = target.rpartition(".")
    owner = owner.rpartition(".")[2]
    return owner if owner[:1].isupper() else name
