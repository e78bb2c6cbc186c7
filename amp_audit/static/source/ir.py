"""What lowering leaves of a module: small picklable trees that the rest of the static half reads.

Every node has ``at``, its ordinal in the module (in order of lowering). Positions are not kept: they are computed from
the source for the ordinals that findings need (``lowering.positions``), because computing them costs several times
the parse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

from amp_audit.records import record

WALRUS = ":="
"""The word for an assignment inside an expression: few definitions have one, and finding it costs a walk over all."""
HALF_TYPES = frozenset({"float16", "bfloat16", "half"})
"""Texts that are words, too: ``torch_dtype="float16"`` and ``getattr(torch, "bfloat16")`` name a dtype as names do."""


@record(frozen=True, slots=True)
class Const:
    """A literal: str, bytes, int, float, complex, bool, None or Ellipsis. Adjacent strings are joined."""

    at: int
    value: object


@record(frozen=True, slots=True)
class Name:
    at: int
    id: str


@record(frozen=True, slots=True)
class Attr:
    at: int
    base: Expr
    name: str


@record(frozen=True, slots=True)
class Arg:
    """``value``, ``keyword=value``, ``*value`` or ``**value`` (``star`` is "", "*" or "**")."""

    value: Expr
    keyword: str | None = None
    star: str = ""


@record(frozen=True, slots=True)
class Call:
    at: int
    func: Expr
    args: tuple[Arg, ...]


@record(frozen=True, slots=True)
class Subscript:
    at: int
    base: Expr
    index: Expr  # several indices are a Sequence of kind "tuple"


@record(frozen=True, slots=True)
class Slice:
    at: int
    lower: Expr | None
    upper: Expr | None
    step: Expr | None


@record(frozen=True, slots=True)
class Binary:
    at: int
    op: str  # as written: + - * / // % ** @ & | ^ << >>
    left: Expr
    right: Expr


@record(frozen=True, slots=True)
class Unary:
    at: int
    op: str  # - + ~ not
    operand: Expr


@record(frozen=True, slots=True)
class Compare:
    at: int
    left: Expr
    rest: tuple[tuple[str, Expr], ...]  # (operator as written, "is not" and "not in" included; right side)


@record(frozen=True, slots=True)
class BoolOp:
    at: int
    op: str  # and | or
    left: Expr
    right: Expr


@record(frozen=True, slots=True)
class IfExp:
    at: int
    test: Expr
    body: Expr
    orelse: Expr


@record(frozen=True, slots=True)
class Sequence:
    """A tuple, list or set display. Starred items are ``Starred``."""

    at: int
    kind: str  # tuple | list | set
    items: tuple[Expr, ...]


@record(frozen=True, slots=True)
class Mapping:
    """A dict display; a key of None is ``**value``."""

    at: int
    items: tuple[tuple[Expr | None, Expr], ...]


@record(frozen=True, slots=True)
class Starred:
    at: int
    value: Expr


@record(frozen=True, slots=True)
class Lambda:
    at: int
    function: Function


@record(frozen=True, slots=True)
class Comprehension:
    """``kind``: list | set | dict | generator. For a dict ``element`` is the value and ``key`` the key."""

    at: int
    kind: str
    element: Expr
    key: Expr | None
    loops: tuple[tuple[Expr, Expr, tuple[Expr, ...]], ...]  # (target, iterable, conditions)


@record(frozen=True, slots=True)
class Text:
    """An f-string; ``parts`` are its expressions."""

    at: int
    parts: tuple[Expr, ...]


@record(frozen=True, slots=True)
class Yield:
    at: int
    value: Expr | None
    delegate: bool = False  # yield from


@record(frozen=True, slots=True)
class Await:
    at: int
    value: Expr


@record(frozen=True, slots=True)
class Walrus:
    at: int
    target: Expr
    value: Expr


Expr: TypeAlias = (
    Const
    | Name
    | Attr
    | Call
    | Subscript
    | Slice
    | Binary
    | Unary
    | Compare
    | BoolOp
    | IfExp
    | Sequence
    | Mapping
    | Starred
    | Lambda
    | Comprehension
    | Text
    | Yield
    | Await
    | Walrus
)


@record(frozen=True, slots=True)
class Evaluate:
    """An expression statement."""

    at: int
    value: Expr


@record(frozen=True, slots=True)
class Assign:
    """``a = b = value`` (two targets); an annotated assignment with a value is one too."""

    at: int
    targets: tuple[Expr, ...]
    value: Expr


@record(frozen=True, slots=True)
class Declare:
    """An annotation without a value (dataclass fields): ``name: annotation``."""

    at: int
    target: Expr
    annotation: Expr


@record(frozen=True, slots=True)
class Augment:
    at: int
    target: Expr
    op: str  # + - * ... without the "="
    value: Expr


@record(frozen=True, slots=True)
class Return:
    at: int
    value: Expr | None


@record(frozen=True, slots=True)
class Raise:
    at: int
    value: Expr | None


@record(frozen=True, slots=True)
class Delete:
    at: int
    targets: tuple[Expr, ...]


@record(frozen=True, slots=True)
class Assert:
    at: int
    test: Expr


@record(frozen=True, slots=True)
class Break:
    at: int


@record(frozen=True, slots=True)
class Continue:
    at: int


@record(frozen=True, slots=True)
class Pass:
    at: int


@record(frozen=True, slots=True)
class Scope:
    """``global`` or ``nonlocal``."""

    at: int
    kind: str
    names: tuple[str, ...]


@record(frozen=True, slots=True)
class Import:
    """``bindings``: (local name, absolute or relative dotted target). A relative target keeps its leading dots.

    ``import a.b`` binds ("a", "a"); ``import a.b as c`` binds ("c", "a.b"); ``from a import b as c`` binds
    ("c", "a.b"); ``from .a import b`` binds ("b", ".a.b"); ``from a import *`` binds ("*", "a"). ``import a.b`` also
    loads module ``a.b``: ``loads`` lists the dotted modules that the statement may load.
    """

    at: int
    bindings: tuple[tuple[str, str], ...]
    loads: tuple[str, ...] = ()


@record(frozen=True, slots=True)
class If:
    at: int
    test: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...]


@record(frozen=True, slots=True)
class For:
    at: int
    target: Expr
    iterable: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...]


@record(frozen=True, slots=True)
class While:
    at: int
    test: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...]


@record(frozen=True, slots=True)
class With:
    """``at`` is the statement; each context expression has its own ordinal."""

    at: int
    items: tuple[tuple[Expr, Expr | None], ...]  # (context, target after "as")
    body: tuple[Stmt, ...]


@record(frozen=True, slots=True)
class Handler:
    at: int
    type: Expr | None
    name: str | None
    body: tuple[Stmt, ...]


@record(frozen=True, slots=True)
class Try:
    at: int
    body: tuple[Stmt, ...]
    handlers: tuple[Handler, ...]
    orelse: tuple[Stmt, ...]
    final: tuple[Stmt, ...]


@record(frozen=True, slots=True)
class Case:
    """``names`` are those that the pattern binds. ``values``: what the subject must equal one of, none where the
    pattern asks for something else, None where it takes anything.
    """

    names: tuple[str, ...]
    values: tuple[Expr, ...] | None
    guard: Expr | None
    body: tuple[Stmt, ...]


@record(frozen=True, slots=True)
class Match:
    at: int
    subject: Expr
    cases: tuple[Case, ...]


@record(frozen=True, slots=True)
class Param:
    """``kind``: positional | keyword (keyword-only) | args (``*args``) | kwargs (``**kwargs``)."""

    name: str
    kind: str
    default: Expr | None = None
    annotation: Expr | None = None


@record(frozen=True, slots=True)
class Function:
    """``words``: every identifier and attribute name in the body, nested definitions included, ``WALRUS`` where
    there is one, and texts that are ``HALF_TYPES``; ``around``: those of decorators and parameters. ``called``: the
    last words of what is called in any of these. ``later`` makes the body when it is first asked for, in place of a
    body that is there: of most functions that are read for context it never is."""

    at: int
    name: str
    qualname: str  # Trainer.fit, outer.<locals>.inner, <lambda>
    params: tuple[Param, ...]
    body: tuple[Stmt, ...]
    decorators: tuple[Expr, ...] = ()
    is_async: bool = False
    is_generator: bool = False
    words: frozenset[str] = frozenset()
    around: frozenset[str] = frozenset()
    called: frozenset[str] = frozenset()
    later: Callable[[], tuple[Stmt, ...]] | None = field(default=None, compare=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Called for what is not there, and so only once for a body."""
            if name != "body":
                raise AttributeError(name)
            self.body = self.later()
            self.later = None
            return self.body


@record(frozen=True, slots=True)
class Class:
    at: int
    name: str
    qualname: str
    bases: tuple[Arg, ...]
    body: tuple[Stmt, ...]
    decorators: tuple[Expr, ...] = ()
    words: frozenset[str] = frozenset()


Stmt: TypeAlias = (
    Evaluate
    | Assign
    | Declare
    | Augment
    | Return
    | Raise
    | Delete
    | Assert
    | Break
    | Continue
    | Pass
    | Scope
    | Import
    | If
    | For
    | While
    | With
    | Try
    | Match
    | Function
    | Class
)


@record(frozen=True, slots=True)
class Module:
    """One lowered module. ``path`` is as given to lowering; ``words`` as of Function, for the whole module; ``imports``
    are the import statements of all its code, in order, wherever they stand; ``definitions`` all its functions, with
    the class whose body each stands in directly."""

    path: str
    body: tuple[Stmt, ...]
    words: frozenset[str] = frozenset()
    imports: tuple[Import, ...] = ()
    definitions: tuple[tuple[Function, Class | None], ...] = ()
