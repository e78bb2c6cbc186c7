"""Options of the command line: what they are where nobody says otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

from amp_audit.static.binding.project import Project
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import parts, statements


class CommandLine:
    """The options that the parsers of a project declare, which are looked for once, when one is first asked for."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def default_of(self, expr: ir.Expr) -> str | None:
        """The text that ``args.name`` is by default, where every ``add_argument("--name", default=...)`` says so."""
        return self.default(expr.name) if isinstance(expr, ir.Attr) else None

    def default(self, name: str) -> str | None:
        """The same for an option by its name."""
        return self._defaults.get(name)

    def number(self, name: str) -> str | None:
        """Whether ``args.name`` is an ``int`` or a ``float``: an option that is one wherever it is declared, and that
        nobody sets to something else later.
        """
        return self._numbers.get(name)

    @cached_property
    def _declared(self) -> list[tuple[str, Mapping[str, ir.Expr]]]:
        return list(_declarations(self._project))

    @cached_property
    def _defaults(self) -> Mapping[str, str]:
        found: dict[str, set[str | None]] = {}
        for name, given in self._declared:
            found.setdefault(name, set()).add(_text(given.get("default")))
        texts = ((name, defaults.pop()) for name, defaults in found.items() if len(defaults) == 1)
        return {name: text for name, text in texts if text is not None}

    @cached_property
    def _numbers(self) -> Mapping[str, str]:
        found: dict[str, set[str]] = {}
        for name, given in self._declared:
            kind = given.get("type")
            found.setdefault(name, set()).add(kind.id if isinstance(kind, ir.Name) else "")
        numbers = {name: kinds.pop() for name, kinds in found.items() if kinds in ({"int"}, {"float"})}
        changed = _assigned(self._project, numbers) if numbers else set()
        return {name: kind for name, kind in numbers.items() if name not in changed}


def _assigned(project: Project, names: Collection[str]) -> set[str]:
    """The attributes among these names that some code of a project sets."""
    modules = (module for module in project.modules.values() if not module.words.isdisjoint(names))
    nodes = (node for module in modules for node in statements(module.body, into=True))
    targets = (target for node in nodes if isinstance(node, ir.Assign) for target in node.targets)
    return {target.name for target in targets if isinstance(target, ir.Attr) and target.name in names}


def _declarations(project: Project) -> Iterator[tuple[str, Mapping[str, ir.Expr]]]:
    """The options of the parsers of a project, with what is said of them by keywords."""
    for module in project.modules.values():
        for call in parts(module.body, into=True) if "add_argument" in module.words else ():
            if isinstance(call, ir.Call) and isinstance(call.func, ir.Attr) and call.func.name == "add_argument":
                yield _declared(call)


def exclusive(module: ir.Module) -> list[frozenset[str]]:
    """The switches that parsers of a module let nobody give together, by the groups that they are declared in."""
    if "add_mutually_exclusive_group" not in module.words:
        return []
    groups: list[set[str]] = []
    held: dict[str, set[str]] = {}
    for node in statements(module.body, into=True):
        value = node.value if isinstance(node, (ir.Assign, ir.Evaluate)) else None
        if not isinstance(value, ir.Call) or not isinstance(value.func, ir.Attr):
            continue
        if isinstance(node, ir.Assign) and value.func.name == "add_mutually_exclusive_group":
            groups.append(set())
            held.update((target.id, groups[-1]) for target in node.targets if isinstance(target, ir.Name))
        elif value.func.name == "add_argument" and isinstance(value.func.base, ir.Name):
            name, given = _declared(value)
            if _text(given.get("action")) == "store_true":
                held.get(value.func.base.id, set()).add(name)
    return [frozenset(group) for group in groups if len(group) > 1]


def _declared(call: ir.Call) -> tuple[str, Mapping[str, ir.Expr]]:
    """The name of an option, and what is said of it by keywords."""
    given = {arg.keyword: arg.value for arg in call.args if arg.keyword is not None}
    flags = [text for arg in call.args if arg.keyword is None and (text := _text(arg.value))]
    named = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
    return _text(given.get("dest")) or named.lstrip("-").replace("-", "_"), given


def _text(expr: ir.Expr | None) -> str | None:
    return expr.value if isinstance(expr, ir.Const) and isinstance(expr.value, str) else None
