"""Which handler takes what is raised."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from amp_audit.records import record
from amp_audit.static.binding.project import UNKNOWN, Binding, ClassRef, External, ModuleRef, Project
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import dotted_text
from amp_audit.static.walking.world import World

_Kind: TypeAlias = type | ClassRef | str | None
"""A builtin class, one of the project, the name of a library's, or one that cannot be told."""


def taken(
    handlers: Iterable[ir.Handler], raised: Iterable[tuple[ir.Raise, World]], code: Project
) -> Iterator[tuple[ir.Raise, World, ir.Handler | None]]:
    """What is raised with the handler that surely takes it, None where surely none does.

    Left out is what a handler may take or not: nobody can tell where it goes on.
    """
    for statement, world in raised:
        error = _Error.of(statement, world, code)
        for handler in handlers:
            takes = _takes(handler, error, world, code)
            if takes is not False:
                break
        else:
            yield statement, world, None
            continue
        if takes:
            yield statement, world, handler


@record(frozen=True, slots=True)
class _Error:
    """What is raised: how its class is spelled, the classes it is known to be of, and whether these are all."""

    text: str
    kinds: frozenset[_Kind]
    complete: bool

    @classmethod
    def of(cls, statement: ir.Raise, world: World, code: Project) -> _Error:
        error = statement.value.func if isinstance(statement.value, ir.Call) else statement.value
        if error is None:
            return cls("", frozenset(), False)
        known, complete, rest = set[_Kind](), True, [_kind(_meaning(error, world, code))]
        while rest:
            kind = rest.pop()
            if kind in known:
                continue
            if isinstance(kind, ClassRef):
                known.add(kind)
                complete = complete and not any(arg.star for arg in kind.cls.bases)
                rest += map(_kind, code.bases(kind))
            elif isinstance(kind, type):
                known.update(kind.__mro__)
            else:
                known.update({kind} - {None})
                complete = False
        return cls(dotted_text(error), frozenset(known), complete)


def _takes(handler: ir.Handler, error: _Error, world: World, code: Project) -> bool | None:
    """Whether a handler takes an error; None where that cannot be told."""
    if handler.type is None:
        return True
    named = handler.type.items if isinstance(handler.type, ir.Sequence) else (handler.type,)
    answers = [_is_of(error, each, _kind(_meaning(each, world, code))) for each in named]
    return True if True in answers else None if None in answers else False


def _is_of(error: _Error, named: ir.Expr, kind: _Kind) -> bool | None:
    if kind is None:
        return True if error.text and error.text == dotted_text(named) else None
    if kind in error.kinds or kind is BaseException:
        return True
    if kind is Exception and not error.complete:  # what programs and libraries call their errors derives from it
        return True
    return False if error.complete and not isinstance(kind, str) else None


def _kind(binding: Binding) -> _Kind:
    if isinstance(binding, External):
        name = binding.dotted.removeprefix("builtins.")
        found = getattr(builtins, name, None) if name != binding.dotted else None
        return found if isinstance(found, type) else binding.dotted
    return binding if isinstance(binding, ClassRef) else None


def _meaning(expr: ir.Expr, world: World, code: Project) -> Binding:
    """What the name of a class means here."""
    if isinstance(expr, ir.Attr):
        return code.member(_meaning(expr.base, world, code), expr.name)
    if not isinstance(expr, ir.Name):
        return UNKNOWN
    held = world.env.get(expr.id)
    if held is None:
        return code.lookup(world.frame.module, expr.id)
    return held if isinstance(held, (External, ClassRef, ModuleRef)) else UNKNOWN
