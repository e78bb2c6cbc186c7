"""Repairs of single calls: deprecated names (AMP101), arguments in the wrong place (AMP103, AMP104)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from amp_audit.model import Confidence, Edit, Fix
from amp_audit.static.binding.canonical import canonical
from amp_audit.static.binding.names import Bound, Imported
from amp_audit.static.binding.origins import Where
from amp_audit.static.binding.project import Scope
from amp_audit.static.binding.signatures import SIGNATURES
from amp_audit.static.fixes.draft import Draft, Unfixable, fix
from amp_audit.static.raw import RawFinding
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import expressions, statements, walk
from amp_audit.static.spots.gates import is_gated
from amp_audit.static.spots.moved import MOVED
from amp_audit.static.spots.sites import Site, inside

_GETTERS = {
    f"torch.{verb}_autocast_{word}_{noun}": (f"{verb}_autocast_{noun}", device)
    for word, device in (("cpu", "cpu"), ("gpu", "cuda"), ("ipu", "ipu"), ("xla", "xla"))
    for verb, noun in (("is", "enabled"), ("set", "enabled"), ("get", "dtype"), ("set", "dtype"))
}


def deprecated(raw: RawFinding, draft: Draft) -> Fix:
    """AMP101: the same call by its new name. Uses that share an import move together, and the import with them."""
    node = draft.statements.get(raw.at)
    if isinstance(node, ir.Import):
        root, target = next(one for one in node.bindings if canonical(one[1]) in MOVED)
        return _moved_together(root, (node, target), draft)
    site = draft.site(raw.at)
    name = _name(site, draft)
    if name in _GETTERS:
        return _getter(site, *_GETTERS[name], draft)
    if name not in MOVED:
        raise Unfixable("no replacement that takes the same arguments")
    root, path = _chain(site.call.func)
    if draft.project.qualified(draft.module, ir.Name(0, root), site.where.scope) == "torch":
        if len(path) != 4:
            raise Unfixable("spelled in an unusual way")
        return _moved_in_place(site, name, root, draft)
    try:
        return _moved_together(root, _import_of(root, site.where, draft), draft)
    except Unfixable:
        if not draft.has_name("torch", site.where) or not _is_imported(root, site.where, draft):
            raise
        return _moved_in_place(site, name, "torch", draft)


def _name(site: Site, draft: Draft) -> str:
    return draft.project.called(draft.module, site.call.func, site.where.scope) or ""


def _getter(site: Site, replacement: str, device: str, draft: Draft) -> Fix:
    func = site.call.func
    if not isinstance(func, ir.Attr) or site.bare:
        raise Unfixable("imported by its name")
    place = draft.position(func.at)
    begin = place.end_column - len(func.name)
    renamed = draft.edit(place.end_line, begin, place.end_line, place.end_column, replacement)
    edits = (renamed, draft.first_argument(site.call, _quoted(device, draft)))
    return fix(True, f"call torch.{replacement}, which takes the device", *edits)


def _quoted(word: str, draft: Draft) -> str:
    return f"{draft.quote}{word}{draft.quote}"


def _moved_in_place(site: Site, name: str, torch: str, draft: Draft) -> Fix:
    """``torch.cuda.amp.autocast(flag)`` -> ``torch.amp.autocast("cuda", enabled=flag)``, whatever was imported.

    ``torch`` is what the library is called there.
    """
    _, word = MOVED[name]
    edits = _arguments(site, name, draft)
    func = draft.position(site.call.func.at)
    place = draft.edit(func.line, func.column, func.end_line, func.end_column, f"{torch}.amp.{word}")
    return fix(True, _told(word), *_merged(place, edits))


def _told(word: str) -> str:
    needs = {"autocast": "1.10", "GradScaler": "2.3"}.get(word, "2.4")
    return f"use torch.amp.{word}, which takes the device (torch {needs} or later)"


def _merged(place: Edit, edits: Sequence[Edit]) -> Iterator[Edit]:
    """A new name and its arguments; what is inserted straight behind the name becomes one edit with it."""
    behind = [e for e in edits if (e.line, e.column) == (place.end_line, place.end_column)]
    yield replace(place, text=place.text + "".join(e.text for e in behind))
    yield from (e for e in edits if e not in behind)


def _arguments(site: Site, name: str, draft: Draft) -> list[Edit]:
    """What the new class or decorator is given where the old one got the same."""
    device, word = MOVED[name]
    quoted = _quoted(device, draft)
    if word in ("custom_fwd", "custom_bwd"):
        if site.bare:
            return [draft.after(site.call.func.at, f"(device_type={quoted})")]
        if any(arg.keyword is None for arg in site.call.args):
            raise Unfixable("called with the function itself")
        return [draft.first_argument(site.call, f"device_type={quoted}")]
    if site.bare:
        raise Unfixable("a class used as a bare decorator")
    named = draft.named(site.call, SIGNATURES[name])
    first = draft.first_argument(site.call, quoted)
    for number, edit in enumerate(named):
        if (edit.line, edit.column) == (first.line, first.column):  # one place, one edit
            named[number] = replace(first, text=first.text + edit.text)
            return named
    return [first, *named]


# Uses that share an import


def _chain(func: ir.Expr) -> tuple[str, list[str]]:
    """The name at the root of an attribute chain, and all its words."""
    words: list[str] = []
    while isinstance(func, ir.Attr):
        words.append(func.name)
        func = func.base
    if not isinstance(func, ir.Name):
        raise Unfixable("not a plain name")
    return func.id, [func.id, *reversed(words)]


def _bound(name: str, where: Where, draft: Draft) -> tuple[Scope | None, list[Bound]]:
    """What binds a name seen from a place, and the function that it does so in."""
    scope = where.scope
    while scope is not None and name not in scope.names.bound:
        scope = scope.outer
    names = scope.names if scope is not None else draft.project.names(draft.module)
    return scope, names.bound.get(name, [])


def _is_imported(name: str, where: Where, draft: Draft) -> bool:
    """Whether only imports bind a name, star imports among them."""
    return all(isinstance(each.source, Imported) for each in _bound(name, where, draft)[1])


def _import_of(name: str, where: Where, draft: Draft) -> tuple[ir.Import, str]:
    """The only import that binds a name seen from a place, and its target. Raises Unfixable where there is none."""
    scope, bound = _bound(name, where, draft)
    source = bound[0].source if len(bound) == 1 else None
    if not isinstance(source, Imported):
        raise Unfixable("the name is no import's, or several bind it")
    for node in statements(scope.function.body if scope is not None else draft.module.body):
        if isinstance(node, ir.Import) and (name, source.target) in node.bindings:
            return node, source.target
    raise Unfixable("the import is out of sight")


def _moved_together(root: str, imported: tuple[ir.Import, str], draft: Draft) -> Fix:
    """Mend an import and every use of the name it binds."""
    node, target = imported
    if target.startswith("."):
        raise Unfixable("comes from another file of the project")
    _refuse_exports(root, draft)
    edits = [_mended_import(node, target, draft)]
    words = set()
    for site, name in _uses(root, node, draft):
        edits += _arguments(site, name, draft)
        words.add(MOVED[name][1])
    word = words.pop() if len(words) == 1 else "autocast and GradScaler"
    return fix(
        True, _told(word) if word in ("autocast", "GradScaler") else "use torch.amp, which takes the device", *edits
    )


def _refuse_exports(root: str, draft: Draft) -> None:
    """Raises Unfixable when another file imports the name from this one and may call it the old way."""
    if draft.may_be_imported_elsewhere(root):
        raise Unfixable("a file that was not read may use the import")
    for module in draft.project.modules.values():
        if module is draft.module:
            continue
        for node in module.imports:
            for local, target in node.bindings:
                if (target.rpartition(".")[2] == root and not target.startswith("torch.")) or (
                    local == "*" and not target.startswith("torch")
                ):
                    raise Unfixable("another file may use the import")


def _mended_import(node: ir.Import, target: str, draft: Draft) -> Edit:
    """``torch.cuda.amp`` -> ``torch.amp`` and ``from torch.cuda import amp`` -> ``from torch import amp``."""
    for _, other in node.bindings:
        if other not in MOVED and other not in ("torch.cuda.amp", "torch.cpu.amp"):
            raise Unfixable("the import brings other names too")
    text = draft.source(node.at)
    for old, new in (("torch.cuda.amp", "torch.amp"), ("torch.cpu.amp", "torch.amp")):
        if text.count(old) == 1 and not text.count(f"{old}."):
            return draft.replace(node.at, text.replace(old, new))
    for old in ("from torch.cuda import", "from torch.cpu import"):
        if text.startswith(old) and len(node.bindings) == 1:
            return draft.replace(node.at, text.replace(old, "from torch import", 1))
    raise Unfixable("an import of a form that is not known")


def _uses(root: str, node: ir.Import, draft: Draft) -> Iterator[tuple[Site, str]]:
    """All calls through the names that an import binds. Raises Unfixable when one of them is used in another way."""
    locals_ = {local for local, _ in node.bindings}
    calls: dict[int, tuple[Site, str]] = {}
    for site in draft.sites.values():
        try:
            first, _ = _chain(site.call.func)
        except Unfixable:
            continue
        if first not in locals_:
            continue
        name = _name(site, draft)
        if name not in MOVED or is_gated(site.gates, site.where, draft.project):
            raise Unfixable("the import serves other uses too")
        calls[_root(site.call.func).at] = (site, name)
        yield site, name
    for name_node in _mentions(locals_, draft):
        if name_node.at not in calls:
            raise Unfixable("the name is also used without being called")


def _root(expr: ir.Expr) -> ir.Expr:
    while isinstance(expr, ir.Attr):
        expr = expr.base
    return expr


def _mentions(names: set[str], draft: Draft) -> Iterator[ir.Name]:
    """The places where names are read, annotations and the classes of ``isinstance`` aside; strings count."""
    stack: list[tuple[Sequence[ir.Stmt], Where]] = [(draft.module.body, Where(draft.module))]
    while stack:
        body, where = stack.pop()
        for node in statements(body):
            if isinstance(node, (ir.Function, ir.Class)):
                stack.append((node.body, inside(where, node)))
            harmless = _annotations(node)
            for expression in expressions(node):
                if any(expression is each for each in harmless):
                    continue
                for part in walk(expression):
                    if isinstance(part, ir.Lambda):
                        stack.append((part.function.body, where))
                    if isinstance(part, ir.Call) and isinstance(part.func, ir.Name) and part.func.id == "isinstance":
                        harmless = [*harmless, *(each for arg in part.args[1:] for each in walk(arg.value))]
                    if isinstance(part, ir.Name) and part.id in names and not any(part is each for each in harmless):
                        yield part
                    if isinstance(part, ir.Const) and isinstance(part.value, str) and part.value in names:
                        yield ir.Name(part.at, part.value)


def _annotations(node: ir.Stmt) -> list[ir.Expr]:
    if isinstance(node, ir.Function):
        return [param.annotation for param in node.params if param.annotation is not None]
    return [node.annotation] if isinstance(node, ir.Declare) else []


# AMP103


def positional(raw: RawFinding, draft: Draft) -> Fix:
    """``GradScaler(flag)`` -> ``GradScaler("cuda", enabled=flag)``; a number becomes ``init_scale``."""
    site = draft.site(raw.at)
    call = site.call
    if not call.args or call.args[0].keyword is not None or call.args[0].star:
        raise Unfixable("given by its name")
    if sum(arg.keyword is None for arg in call.args) != 1:
        raise Unfixable("several positional arguments, old ones or new ones")
    kinds, _ = draft.origins.kinds(call.args[0].value, site.where)
    word = "enabled" if kinds <= {"bool", "flag"} else "init_scale" if kinds <= {"int", "float"} else ""
    if not word or any(arg.keyword in (word, "device") or arg.star for arg in call.args):
        raise Unfixable("not known which argument is meant")
    (named,) = draft.named(ir.Call(call.at, call.func, call.args[:1]), (word,))
    edit = replace(named, text=f"{_quoted('cuda', draft)}, {named.text}")
    sure = raw.confidence is Confidence.HIGH
    return fix(sure, f"name the argument: it is meant as {word}", edit)


# AMP104

_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64", "half"})


def bad_argument(raw: RawFinding, draft: Draft) -> Fix:
    """Arguments of autocast of the wrong kind, where the right one can be made from what is there."""
    site = draft.site(raw.at)
    name = _name(site, draft)
    signature = SIGNATURES.get(name, ())
    if site.bare or not signature or any(arg.star for arg in site.call.args):
        raise Unfixable("no arguments to look at")
    for index, arg in enumerate(site.call.args):
        parameter = arg.keyword if arg.keyword is not None else signature[index] if index < len(signature) else ""
        kinds, _ = draft.origins.kinds(arg.value, site.where)
        found = _of_argument(parameter or "", kinds, index, arg, site, draft)
        if found is not None:
            return found
    raise Unfixable("not known what is meant")


def _of_argument(
    parameter: str, kinds: frozenset[str], index: int, arg: ir.Arg, site: Site, draft: Draft
) -> Fix | None:
    if parameter in ("device_type", "device"):
        found = _device(kinds, arg.value, draft)
        if found is not None:
            return found
    if parameter in ("device_type", "enabled") and kinds == {"dtype"}:
        return _dtype_in_another_place(parameter, index, arg, site, draft)
    if parameter == "enabled" and kinds and kinds <= {"int", "none"}:
        return _enabled(arg.value, draft)
    word = arg.value.value if isinstance(arg.value, ir.Const) else None
    if parameter == "dtype" and word in _DTYPES and draft.has_name("torch", site.where):
        return fix(True, "take the dtype itself", draft.replace(arg.value.at, f"torch.{word}"))
    return None


def _device(kinds: frozenset[str], value: ir.Expr, draft: Draft) -> Fix | None:
    if kinds == {"device"} and isinstance(value, (ir.Name, ir.Attr, ir.Call)):
        return fix(True, "take the type of the device, which is a string", draft.after(value.at, ".type"))
    word = value.value if isinstance(value, ir.Const) else None
    if isinstance(word, str) and word != "cuda" and word.lower() in ("gpu", "nvidia", "gpu:0", "cuda"):
        return fix(True, 'the device is called "cuda"', draft.replace(value.at, _quoted("cuda", draft)))
    return None


def _dtype_in_another_place(parameter: str, index: int, arg: ir.Arg, site: Site, draft: Draft) -> Fix | None:
    """A dtype that was given by position where another argument goes; the only one there, and the last."""
    others = site.call.args[index + 1 :]
    if arg.keyword is not None or any(other.keyword in (None, "dtype") for other in others):
        return None
    device = f"{_quoted('cuda', draft)}, " if parameter == "device_type" else ""
    return fix(not device, "name the dtype", draft.before(arg.value.at, f"{device}dtype="))


def _enabled(value: ir.Expr, draft: Draft) -> Fix | None:
    if isinstance(value, ir.Const):
        return fix(True, "`enabled` is a bool", draft.replace(value.at, str(bool(value.value))))
    if isinstance(value, (ir.Name, ir.Attr)):
        return fix(True, "make a bool of it", draft.replace(value.at, f"bool({draft.source(value.at)})"))
    return None


# AMP804

_LIGHTNING = {16: "16-mixed", "16": "16-mixed", "bf16": "bf16-mixed"}


def lightning_word(raw: RawFinding, draft: Draft) -> Fix:
    """``Trainer(precision=16)`` -> ``Trainer(precision="16-mixed")``, which is what Lightning makes of it."""
    for arg in draft.site(raw.at).call.args:
        word = arg.value.value if isinstance(arg.value, ir.Const) else None
        if arg.keyword == "precision" and isinstance(word, (int, str)) and word in _LIGHTNING:
            new = _LIGHTNING[word]
            return fix(True, f"the word of today is {new}", draft.replace(arg.value.at, _quoted(new, draft)))
    raise Unfixable("not a word with a successor")
