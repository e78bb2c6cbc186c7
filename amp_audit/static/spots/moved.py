"""AMP101 where nothing is called: imports of names that have moved, and names that a ``try`` gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from amp_audit.model import Confidence
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.canonical import canonical
from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.binding.project import Project
from amp_audit.static.raw import RawFinding
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, names_in
from amp_audit.static.spots.gates import Gate, gate_of, gates_the_rest, is_gated
from amp_audit.static.spots.sites import inside

MOVED: Mapping[str, tuple[str, str]] = {
    f"torch.{device}.amp.{name}": (device, name)
    for device, names in (
        ("cuda", ("autocast", "GradScaler", "custom_fwd", "custom_bwd")),
        ("cpu", ("autocast", "GradScaler")),
    )
    for name in names
}
"""Deprecated names with the device that their replacement in ``torch.amp`` is given."""


def imported(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """Imports that bring such a name, one finding each; and in a ``try``, where a class of the project may stand in
    for it, so that its calls are not surely its calls: the assignment of it.
    """
    if module.words.isdisjoint({"autocast", "GradScaler", "custom_fwd", "custom_bwd"}):
        return
    for at, name in _found(module.body, Where(module), (), project):
        message = detector.message.format(name=name)
        yield RawFinding(rule, module.path, at, message, Confidence.HIGH, detector.severity)


def _found(
    body: Sequence[ir.Stmt], where: Where, gates: tuple[Gate, ...], project: Project
) -> Iterator[tuple[int, str]]:
    for node in body:
        if isinstance(node, (ir.Function, ir.Class)):
            yield from _found(node.body, inside(where, node), gates, project)
            continue
        name = _brought(node, where, gates, project)
        if name is not None and not is_gated(gates, where, project):
            yield node.at, name
        gate = gate_of(node)
        within = gates if gate is None else (*gates, gate)
        for inner in bodies(node):
            yield from _found(inner, where, within, project)
        if gate is not None and gates_the_rest(node):
            gates = within


def _brought(node: ir.Stmt, where: Where, gates: tuple[Gate, ...], project: Project) -> str | None:
    """The moved name that a statement binds, if it does, other than for type checkers alone."""
    if isinstance(node, ir.Import):
        typing = any(not isinstance(gate, ir.Try) and "TYPE_CHECKING" in names_in(gate) for gate in gates)
        return None if typing else next((name for name in _targets(node) if name in MOVED), None)
    if isinstance(node, ir.Assign) and any(isinstance(gate, ir.Try) for gate in gates):
        name = project.qualified(where.module, node.value, where.scope)
        return name if name in MOVED else None
    return None


def _targets(node: ir.Import) -> Iterator[str]:
    return (canonical(target) for _, target in node.bindings if not target.startswith("."))
