"""Options of the command line: what they are where nobody says otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from amp_audit.static.binding.project import Project
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import parts, statements


def default_of(expr: ir.Expr, project: Project) -> str | None:
    """The text that ``args.name`` is by default, where one ``add_argument("--name", default=...)`` alone says so."""
    return named_default(expr.name, project) if isinstance(expr, ir.Attr) else None


def named_default(name: str, project: Project) -> str | None:
    """The same for an option by its name."""
    found = {default for dest, default in _declared(project) if dest == name}
    return found.pop() if len(found) == 1 else None


def number_types(project: Project) -> Mapping[str, str]:
    """Whether ``args.name`` is an int or a float, for the options that are numbers wherever they are declared, and that
    nobody sets to something else later.
    """
    found: dict[str, set[str]] = {}
    for name, given in _declarations(project):
        kind = given.get("type")
        found.setdefault(name, set()).add(kind.id if isinstance(kind, ir.Name) else "")
    numbers = {name: kinds.pop() for name, kinds in found.items() if kinds in ({"int"}, {"float"})}
    return {name: kind for name, kind in numbers.items() if name not in _assigned(project, numbers)} if numbers else {}


def _assigned(project: Project, names: Collection[str]) -> set[str]:
    """The attributes among these names that some code of a project sets."""
    modules = (module for module in project.modules.values() if not module.words.isdisjoint(names))
    nodes = (node for module in modules for node in statements(module.body, into=True))
    targets = (target for node in nodes if isinstance(node, ir.Assign) for target in node.targets)
    return {target.name for target in targets if isinstance(target, ir.Attr) and target.name in names}


def _declared(project: Project) -> Iterator[tuple[str, str | None]]:
    """The options of the parsers of a project with the texts that they default to (None: no text)."""
    for name, given in _declarations(project):
        yield name, _text(given.get("default"))


def _declarations(project: Project) -> Iterator[tuple[str, Mapping[str, ir.Expr]]]:
    """The options of the parsers of a project, with what is said of them by keywords."""
    for module in project.modules.values():
        for call in parts(module.body, into=True) if "add_argument" in module.words else ():
            if isinstance(call, ir.Call) and isinstance(call.func, ir.Attr) and call.func.name == "add_argument":
                given = {arg.keyword: arg.value for arg in call.args if arg.keyword is not None}
                flags = [text for arg in call.args if arg.keyword is None and (text := _text(arg.value))]
                named = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
                yield _text(given.get("dest")) or named.lstrip("-").replace("-", "_"), given


def _text(expr: ir.Expr | None) -> str | None:
    return expr.value if isinstance(expr, ir.Const) and isinstance(expr.value, str) else None
