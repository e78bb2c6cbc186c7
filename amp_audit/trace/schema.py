"""The records of a trace: what the runtime half writes and everything else reads. Imports neither torch nor libcst.

A trace is a folder with one append-only ``rank-N.jsonl`` per process: a ``Header``, one ``StepRecord`` per optimizer
step, an ``End``. All is strict JSON; a torn last line is ignored by the reader. Counts are stored, never shares.
dtypes are torch's short names ("float16"); paths are absolute; lines count from 1.

What an ``OpRow`` or ``CastRow`` is about is the same in each step, so a file says it once: ``Rows`` records define
rows, numbered from 0 through the file, and the ``ops`` and ``casts`` of a step are lists ``[row, calls, elements,
...]`` in the order of the fields that count. The reader puts the two together again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

VERSION = 2
"""What is read: a trace of another version is refused. 2: ``OpRow.read`` and ``CastRow.again`` stand between counts."""

PHASES = ("forward", "recompute", "backward", "optimizer", "other")


@dataclass(slots=True)
class Place:
    """Where in the program: the innermost line outside torch; ``user_*`` is the innermost line outside site-packages.

    For a backward op both are those of the forward op that caused it. ``column`` / ``end_column`` count from 1 (code
    points, end exclusive) where Python gives them. ``module`` is the dotted path below the outermost module
    ("encoder.layers.0.fc1"; of several such "netG.fc1", by variable), "" at the root, None outside of any module.
    """

    path: str | None = None
    line: int | None = None
    column: int | None = None
    end_column: int | None = None
    function: str | None = None
    module: str | None = None
    user_path: str | None = None
    user_line: int | None = None


@dataclass(slots=True)
class OpRow:
    """Calls of one op that agree in phase, dtypes, module, line and autocast dtype. ``elements``, ``bytes``: outputs;
    ``read``: bytes of the tensors it was given.

    ``autocast`` is the low-precision dtype of the region in force on the op's device, or None when autocast is off;
    ``off``: it is off in a region that lies within one that is on (of a backward op: its forward op's).
    ``flops`` counts multiply-adds twice, for matmul and convolution ops only, else None.
    ``nanoseconds``: what the calls took, each by itself, on deep steps: by the clock on the CPU, between two events in
    the stream on a GPU.
    """

    phase: str
    op: str
    inputs: tuple[str, ...]
    output: str | None
    place: Place
    autocast: str | None
    calls: int = 0
    elements: int = 0
    bytes: int = 0
    read: int = 0
    flops: int | None = None
    nanoseconds: int | None = None
    off: bool = False


@dataclass(slots=True)
class CastRow:
    """Casts that agree in phase, dtypes, module and line. The counts of values are None where they were not taken.

    ``again``: elements of parameters that were cast to this dtype before in the same outermost autocast region,
    unchanged (forward pass only).

    ``nonzero``: source elements that are not zero; ``flushed``: of these, those that are zero after the cast and at
    or below the flush threshold of the target; ``subnormal``: results with 0 < \\|x\\| < finfo.tiny; ``zero``: source
    elements that were zero already; ``overflowed``: finite source elements that became inf.
    ``nanoseconds``: see ``OpRow``.
    """

    phase: str
    source: str
    target: str
    place: Place
    calls: int = 0
    elements: int = 0
    bytes: int = 0
    again: int | None = None
    nonzero: int | None = None
    flushed: int | None = None
    subnormal: int | None = None
    zero: int | None = None
    overflowed: int | None = None
    nanoseconds: int | None = None


@dataclass(slots=True)
class EventRow:
    """One protocol event (``amp_audit.events``) with its place; ids are small integers, unique within the process.

    ``names`` are what a person would call the owners concerned (parameter or module names), when known.
    """

    kind: str
    place: Place
    scaler: int | None = None
    optimizer: int | None = None
    owners: tuple[int, ...] | None = ()
    via: str | None = None
    scaled: bool | None = None
    region: int | None = None
    device: str | None = None
    dtype: str | None = None
    enabled: bool | None = None
    cache: bool = True
    foreign: bool = False
    contents: tuple[str, ...] = ()
    site: str | None = None
    skipped: bool = False
    given: bool = False
    detached: bool = False
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class Number:
    """One measured thing of one step. ``name`` says which, ``values`` holds counts and numbers (never NaN or inf).

    underflow         per op, by float32 re-execution: elements, nonzero, flushed, subnormal, zero
    gradient          per parameter (``subject``): elements, nonzero, flushed, subnormal, zero on its way through
                      low precision, and the loss scale in force
    starved           per parameter (``subject``) whose gradient is wholly zero for what an op before it lost: the op
                      that made zeros of all its nonzero values, with its place; elements of the gradient
    nonfinite         first op whose finite inputs gave inf or NaN: inf, nan, elements, input_max. Without ``op`` they
                      came from outside of the step, in the parameter ``subject`` where there is one
    lost_updates      per parameter: elements, updates (nonzero update), lost (of these, weight unchanged)
    scale             per scaler (``subject``): before, after, skipped (0 or 1)
    clip              per call: norm as seen by the call, max_norm, and the loss scale in force; where it is known of
                      all gradients whether they carry that, their 2-norm ``unscaled``; ``subject``: the module that
                      all the parameters lie in, if that is not the outermost
    loss              per backward of one scalar: value without the loss scale (null when not finite), and the scale
    grad_norm         per optimizer that steps (``subject``: the module that it trains, or the variable that holds it):
                      norm of its gradients without the loss scale, and the scale they carried
    exponents         counts of values by binary exponent: "-14" counts 2**-14 <= \\|x\\| < 2**-13, beside ``zero`` and
                      ``nonfinite``. With phase forward or backward: what the ops of a module (``subject``) gave before
                      rounding to ``dtype``; with phase "gradient": a parameter's (``subject``) gradient; with phase
                      "output": what a module (``subject``) returned in ``dtype``. ``scale`` is the loss scale in them
    rescaled          of the same elements, by module (``subject``), where the backward pass was repeated at other loss
                      scales: ``nonzero`` before rounding, and by power of two ("3": 8) those that are zero then
    rounding          per op and line, by float32 re-execution, where rounding does not explain it: sums of squared
                      errors and of squared values (finite, not subnormal), elements
    range             per op and line, forward, ``dtype`` float16, from 2**8 on: the largest finite magnitude, elements
    saved             what autograd kept for the backward pass when most was kept in the step, by module (``subject``)
                      and ``dtype``: bytes of memory, each counted once, without parameters and buffers; tensors
    live              per device (``subject``) and ``dtype``, on deep steps: bytes of the tensors that operators made
                      and of parameters, gradients and optimizer state, at the moment when these were most ``together``
    allocated         per GPU (``subject``), bytes by torch's allocator at the end of a deep step: now, and peak since
                      the program last set that back
    widened           per op and line at which a float32 table (``subject``: its name, if a module has it) met tensors
                      of ``dtype``: bytes that later ops of the forward pass wrote in float32 for that, how many
                      ``ops`` these were, and bytes that all ops of the pass wrote ``together``
    raised            an op that raised; ``subject`` is the first line of the error, ``dtype`` its first tensor's;
                      without ``op`` the error that ended the program, ``subject`` beginning with its type
    closure           a scaler.step with a closure: backwards inside it
    dtype_refused     an autocast region that is off because its device has no autocast in ``dtype``
    region_unused     autocast objects of one place that nothing entered: built
    """

    name: str
    place: Place | None = None
    subject: str | None = None
    op: str | None = None
    phase: str | None = None
    dtype: str | None = None
    values: Mapping[str, float | int | None] = field(default_factory=dict)


@dataclass(slots=True)
class Header:
    """``policy``: the device whose autocast lists were in force: cpu, cuda, ... ``emulated``: what was emulated on the
    CPU, as it was asked for ("cuda:sm80"); None for a run on the real device. ``dry``: nothing large was computed.
    ``forked``: the process was forked by one that was recorded already.
    """

    schema: int
    amp_audit: str
    torch: str
    python: str
    device: str
    policy: str
    rank: int
    world_size: int
    argv: tuple[str, ...]
    cwd: str
    sample: str
    steps: int | None
    started: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    emulated: str | None = None
    dry: bool = False
    forked: bool = False


@dataclass(slots=True)
class StepRecord:
    """One step. ``recorded``: whether op records were taken; events are there on every step.

    ``open``: no optimizer stepped in it: a step in flight when the program ended. ``lines``: by path, lines of watched
    code that were reached for the first time. ``seconds``: wall time of the step.
    A step may be written in several parts (two optimizers; what follows the last step): the reader joins them.
    """

    step: int
    recorded: bool
    deep: bool = False
    open: bool = False
    seconds: float | None = None
    ops: list[OpRow] = field(default_factory=list)
    casts: list[CastRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lines: Mapping[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Rows:
    """Definitions of rows, their counts left at zero."""

    ops: list[OpRow] = field(default_factory=list)
    casts: list[CastRow] = field(default_factory=list)


@dataclass(slots=True)
class End:
    """``reason``: finished | stopped | failed | interrupted | killed, or cut: the program went on, and what came then
    could not be written; ``lines``: all reached lines of watched code.

    ``program_exit`` is None where the process cannot know it (``sys.exit``); whoever started it does.
    """

    reason: str
    program_exit: int | None
    steps: int
    notes: list[str] = field(default_factory=list)
    lines: Mapping[str, list[int]] = field(default_factory=dict)
    unobserved: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Trace:
    """All that one process left behind. ``end`` is None when it was killed."""

    header: Header
    steps: list[StepRecord]
    end: End | None = None
    torn: bool = False

    @property
    def finished(self) -> int:
        """Steps in which an optimizer stepped or skipped."""
        if self.end is not None:
            return self.end.steps
        return max((record.step for record in self.steps if not record.open), default=0)

    @property
    def lines(self) -> dict[str, set[int]]:
        """Reached lines of watched code, also when the process was killed."""
        found: dict[str, set[int]] = {}
        for part in (*(step.lines for step in self.steps), self.end.lines if self.end else {}):
            for path, lines in part.items():
                found.setdefault(path, set()).update(lines)
        return found


Record = Header | StepRecord | Rows | End
_TYPES: dict[str, type[Any]] = {"header": Header, "step": StepRecord, "rows": Rows, "end": End}
_NAMES = {cls: name for name, cls in _TYPES.items()}
_ROWS: dict[str, type[Any]] = {"ops": OpRow, "casts": CastRow, "events": EventRow, "numbers": Number}
_COUNTED: dict[type[Any], tuple[str, ...]] = {
    OpRow: ("calls", "elements", "bytes", "read", "flops", "nanoseconds"),
    CastRow: (
        *("calls", "elements", "bytes", "again", "nonzero", "flushed", "subnormal", "zero", "overflowed"),
        "nanoseconds",
    ),
}
R = TypeVar("R")
Counts = Sequence[Sequence[int | None]]


def to_json(record: Record) -> dict[str, Any]:
    """A record as data for JSON, the records in it by way of ``lean``."""
    return {"type": _NAMES[type(record)], **lean(record)}


def from_json(data: Mapping[str, Any], rows: Rows | None = None) -> Record:
    """The record of ``to_json``; ``rows`` are the rows defined so far in the file.

    Raises ``KeyError``, ``TypeError``, ``ValueError`` or ``IndexError`` for anything else; unknown fields are ignored.
    """
    kind = _TYPES[data["type"]]
    record: Record = _build(kind, data)
    if isinstance(record, (StepRecord, Rows)):
        defined = rows or Rows()
        for name, cls in _ROWS.items():
            if name in data:
                known = getattr(defined, name, [])
                setattr(record, name, [_row(cls, item, known) for item in data[name]])
    return record


def _row(cls: type[R], data: Mapping[str, Any] | Sequence[Any], known: list[R]) -> R:
    if isinstance(data, Mapping):
        place = data.get("place")
        default = None if cls is Number else Place()
        return _build(cls, {**data, "place": default if place is None else _build(Place, place)})
    counted: dict[str, Any] = dict(zip(_COUNTED[cls], data[1:]))
    row: R = replace(known[data[0]], **counted)
    return row


def _build(cls: type[R], data: Mapping[str, Any]) -> R:
    known: Mapping[str, Any] = _fields(cls)
    return cls(**{key: tuple(v) if key in _TUPLES and v is not None else v for key, v in data.items() if key in known})


_TUPLES = frozenset({"inputs", "owners", "contents", "names", "argv"})


_FIELDS: dict[type[Any], dict[str, Any]] = {}


def _fields(cls: type[Any]) -> dict[str, Any]:
    """The fields of a record with their defaults (``MISSING`` where there is none)."""
    if cls not in _FIELDS:
        _FIELDS[cls] = {one.name: _default(one) for one in fields(cls)}
    return _FIELDS[cls]


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def lean(record: Any) -> dict[str, Any]:
    """The fields of a record, or of a part of one, that do not have their default values.

    Raises KeyError for anything else.
    """
    pairs = zip(_fields(type(record)).items(), _READERS[type(record)](record))
    return {name: item for (name, default), item in pairs if item is not default and item != default}


_READERS: dict[type[Any], Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*_fields(kind)) for kind in (*_NAMES, *_ROWS.values(), Place)
}
"""What reads all fields of a record at once: this is done for each event of each step."""
