"""Models that a project builds for inference alone: they run outside of its training, whatever imports them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from amp_audit.records import record
from amp_audit.static.binding.project import ClassRef, Project, Scope
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import dotted_text, expressions, last_word, statements, walk

_TRAINING = frozenset(
    {"train", "backward", "optim", "optimizer", "parameters", "zero_grad", "requires_grad", "autocast", "training"}
)
"""Words of code that does more with a model than run it."""

_Key = tuple[str, int]


@record(frozen=True, slots=True)
class _Site:
    """A call that builds a model: the class whose method it stands in, and whether what it builds is put in eval mode
    by code that trains nothing."""

    within: _Key | None
    is_idle: bool


def only_inferred(project: Project, classes: Collection[ClassRef]) -> set[_Key]:
    """Those of some models that are built somewhere, and everywhere either for inference or by one of these."""
    named: dict[str, list[_Key]] = {}
    for cls in classes:
        named.setdefault(cls.cls.name, []).append(cls.key)
    sites: dict[_Key, list[_Site]] = {}
    for module in project.modules.values():
        if not module.words.isdisjoint(named):
            for key, site in _sites(module, named, project):
                sites.setdefault(key, []).append(site)
    found = set(sites)
    while True:
        kept = {key for key in found if all(site.is_idle or site.within in found - {key} for site in sites[key])}
        if kept == found:
            return _rooted(found, sites)
        found = kept


def _rooted(found: set[_Key], sites: dict[_Key, list[_Site]]) -> set[_Key]:
    """Those that lead back to a model in eval mode: models that only build each other are built elsewhere."""
    rooted = {key for key in found if any(site.is_idle for site in sites[key])}
    while True:
        more = {key for key in found - rooted if any(site.within in rooted for site in sites[key])}
        if not more:
            return rooted
        rooted |= more


def _sites(module: ir.Module, named: Mapping[str, Sequence[_Key]], project: Project) -> Iterator[tuple[_Key, _Site]]:
    """Where a module builds some of the models; a name that is not resolved may mean all that are called so."""
    if named.keys().isdisjoint(module.words):
        return
    bodies: list[tuple[ir.Function | None, ir.Class | None, Sequence[ir.Stmt]]] = [(None, None, module.body)]
    inner = project.definitions(module)
    bodies += [(function, cls, function.body) for function, cls in inner if not named.keys().isdisjoint(function.words)]
    for function, cls, body in bodies:
        nodes = [node for node in statements(body) if not isinstance(node, (ir.Function, ir.Class))]
        within = ClassRef(module, cls).key if cls is not None else None
        for node in nodes:
            for call in _calls(node):
                name = last_word(call.func)
                if name in named:
                    built = project.resolve(module, call.func, Scope(function) if function is not None else None)
                    keys = (built.key,) if isinstance(built, ClassRef) else named[name]
                    idle = function is not None and _is_idle(node, nodes)
                    yield from ((key, _Site(within, idle)) for key in keys)


def _calls(node: ir.Stmt) -> Iterator[ir.Call]:
    for expression in expressions(node):
        yield from (part for part in walk(expression) if isinstance(part, ir.Call))


def _is_idle(node: ir.Stmt, nodes: Sequence[ir.Stmt]) -> bool:
    """Whether what a statement builds is put in eval mode in the same function, which does nothing of training."""
    words = {word for each in nodes for call in _calls(each) for word in dotted_text(call.func).split(".")}
    if words & _TRAINING or not isinstance(node, ir.Assign):
        return False
    held = {dotted_text(target) for target in node.targets}
    return any(
        isinstance(call.func, ir.Attr) and call.func.name == "eval" and (each is node or _begins(call, held))
        for each in nodes
        for call in _calls(each)
    )


def _begins(call: ir.Call, held: set[str]) -> bool:
    """Whether a chain of calls begins with one of some names."""
    text = dotted_text(call.func)
    return any(name and text.startswith(f"{name}.") for name in held)
