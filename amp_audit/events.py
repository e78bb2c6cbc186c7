"""The vocabulary of a training program, produced from the code and from a run alike."""

from __future__ import annotations

import enum
from collections.abc import Hashable

from amp_audit.records import record

Id = Hashable
"""An opaque identity of a scaler, an optimizer, a parameter owner or a region."""


class Kind(str, enum.Enum):
    """What happened. The values are the words used in rule files and in the trace."""

    SCALER_NEW = "scaler_new"
    OPTIMIZER_NEW = "optimizer_new"
    REGION_ENTER = "region_enter"
    REGION_EXIT = "region_exit"
    FORWARD = "forward"
    EVALUATE = "evaluate"
    JIT_TRACE = "jit_trace"
    SCALE = "scale"
    DROP = "drop"
    BACKWARD = "backward"
    AUTOGRAD_GRAD = "autograd_grad"
    SCALE_READ = "scale_read"
    DESCALE = "descale"
    UNSCALE = "unscale"
    CLIP = "clip"
    GRAD_READ = "grad_read"
    GRAD_WRITE = "grad_write"
    HOOK = "hook"
    THREAD = "thread"
    LEAVE_OUT = "leave_out"
    PICKLE = "pickle"
    STEP = "step"
    UPDATE = "update"
    ZERO_GRAD = "zero_grad"
    SCHEDULER_STEP = "scheduler_step"
    AVERAGE = "average"
    LOSS_READ = "loss_read"
    WEIGHT_WRITE = "weight_write"
    CACHE_CLEAR = "cache_clear"
    CAST = "cast"
    SAVE = "save"
    LOAD = "load"
    ITERATION_END = "iteration_end"
    PROGRAM_END = "program_end"


class Via(str, enum.Enum):
    """Who makes the optimizer step."""

    SCALER = "scaler"
    PLAIN = "plain"
    FRAMEWORK = "framework"


@record(frozen=True, slots=True)
class Boundary:
    """A test that comes true every so many iterations, as the last one of an accumulation does.

    ``modulus`` is how many, ``counter`` what counts them, ``residue`` at which count it comes true, modulo ``modulus``
    (None: not known). ``named``: the code itself calls the modulus an accumulation. ``nominal``: the modulus comes out
    of a division, as that of a nominal batch size by the real one, whose gradients are meant to be summed. ``loops``
    are the loops around the test, outermost first.
    """

    modulus: Id
    counter: Id = ""
    residue: int | None = None
    named: bool = False
    nominal: bool = False
    loops: tuple[Id, ...] = ()


@record(frozen=True, slots=True)
class Event:
    """One thing a training program does. Positions are kept beside events, never in them.

    ``owners`` are the parameter owners concerned (models or parameter groups); None when they cannot be resolved.
    ``scaled`` says of a backward whether the loss carried the loss scale (None: unknown), of a scale whether a part of
    what is scaled surely did before.
    ``dtype`` is the low-precision dtype of the region (region_enter), or the one in which the loss of a backward
    was computed: ``"float16"``, ``"bfloat16"``, ``"float32"`` or None when unknown.
    ``contents`` are the kinds of state a save or load holds: model, optimizer, scaler.
    ``enabled`` says of a region that it is on, of a forward, when False, that no gradients are recorded.
    ``foreign`` says of a region that a framework entered it around code that it calls (only a run knows).
    ``site`` is where a scaler was built, the same for every scaler that one constructor call makes.
    ``skipped`` says of a step through a scaler that an inf was found (only a run knows).
    ``given`` says of an update that the caller set the new scale, which needs no inf checks, and of a scheduler's step
    that it was told where it stands, and of a division by the scale that what is divided is not known to carry it.
    ``early`` says of an iteration that it ended by continue or return.
    ``detached`` says of a backward that the loss is a leaf of its own, so that no parameter gets a gradient.
    ``term`` says of a backward that it is that of some terms of a loss only, those which carry no scale.
    ``divided`` holds what the loss of a backward may have been divided by, besides what normalises it anyway.
    ``proportional`` says of a change of gradients that it commutes with the loss scale, of a hook, when False, that it
    makes one that does not.
    ``ran`` says where models run, for a backward all those that its loss comes from: ``"inside"`` a region that is on,
    ``"off"`` in one that is off, ``"outside"`` of any, or None.
    ``boundaries`` are, of a step, a clip or a zero_grad, the boundary tests that had come true when it happened, and of
    the end of an iteration those that had not come true in it, which are ``missed`` of a zero_grad. Only the code knows
    them.
    ``given`` says of a jit_trace that torch traces a second time, to compare.
    ``given`` says of a zero_grad that a test of the gradients wants them dropped, which a step after ``unscale_``
    bears.
    ``given`` says of a step that the code around it keeps gradients by a switch.
    ``sometimes`` says of a step, a clip or a zero_grad that it depends on something that changes from iteration to
    iteration, of a scheduler's step that it depends on whether the optimizer stepped. ``loops`` are the loops around.
    ``reference`` says of a forward without gradients that the code calls the model a reference, to compare others with.
    ``frozen`` says of a scaler's step that the parameters require no gradients.
    ``sharded`` says that the parameters concerned are FSDP's shards, and of a scaler's step that the scaler does not
    know. ``whole`` says of an optimizer that it has all parameters of its owners, ``within`` of which models it has
    some.
    ``read`` names, for a reading of the scale and for a division by it, where the scale was read.
    """

    kind: Kind
    scaler: Id | None = None
    optimizer: Id | None = None
    owners: tuple[Id, ...] | None = ()
    via: Via | None = None
    scaled: bool | None = None
    region: Id | None = None
    device: str | None = None
    dtype: str | None = None
    enabled: bool | None = None
    cache: bool = True
    foreign: bool = False
    contents: frozenset[str] = frozenset()
    site: Id | None = None
    skipped: bool = False
    given: bool = False
    early: bool = False
    detached: bool = False
    term: bool = False
    divided: frozenset[Id] = frozenset()
    proportional: bool | None = None
    ran: str | None = None
    boundaries: frozenset[Boundary] = frozenset()
    missed: frozenset[Boundary] = frozenset()
    sometimes: bool = False
    read: Id | None = None
    frozen: bool = False
    sharded: bool = False
    whole: bool = False
    within: tuple[Id, ...] = ()
    reference: bool = False
    loops: tuple[Id, ...] = ()
