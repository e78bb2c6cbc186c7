"""What repairs are built with: the nodes of one file by ordinal, their text, and edits of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from amp_audit.model import Edit, Fix
from amp_audit.records import record
from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.binding.project import Project
from amp_audit.static.findings import File
from amp_audit.static.source import ir
from amp_audit.static.source.position import Position
from amp_audit.static.source.traverse import bodies, statements
from amp_audit.static.spots.sites import Site, sites
from amp_audit.static.spots.spaces import calls, spaces

_REST_OF_LINE = re.compile(r"[ \t]*(?:#.*)?\Z")


class Unfixable(Exception):
    """This place cannot be repaired by a rewrite that is surely meant. Caught where repairs are asked for."""


@record(frozen=True, slots=True)
class Space:
    """A body whose names belong together, and from where its names are seen."""

    where: Where
    body: Sequence[ir.Stmt]


class Draft:
    """One file, read for repairs. Positions are those of its text, in which the cells of a notebook are joined."""

    def __init__(self, file: File, project: Project, origins: Origins, *, thorough: bool = False) -> None:
        self._thorough = thorough
        self.file = file
        self.module = file.module
        self.project = project
        self.origins = origins

    # Nodes

    @cached_property
    def sites(self) -> dict[int, Site]:
        """The calls and bare decorators of the file, by the ordinal that findings give them."""
        return {site.at: site for site in sites(self.module)}

    @cached_property
    def statements(self) -> dict[int, ir.Stmt]:
        """All statements by ordinal."""
        return {node.at: node for node in statements(self.module.body, into=True)}

    @cached_property
    def _spaces(self) -> dict[int, Space]:
        """For the ordinal of each call, the body it stands in."""
        return {call.at: Space(where, body) for where, body in spaces(self.module) for call in calls(body)}

    def site(self, at: int) -> Site:
        """The call at an ordinal. Raises Unfixable where there is none."""
        if at not in self.sites:
            raise Unfixable("not a call")
        return self.sites[at]

    def space(self, at: int) -> Space:
        """The body around the call at an ordinal. Raises Unfixable where there is none."""
        if at not in self._spaces:
            raise Unfixable("not in a body")
        return self._spaces[at]

    def holder(self, at: int) -> ir.Stmt:
        """The innermost statement that holds an ordinal. Raises Unfixable for a handler of exceptions."""
        found = self.statements.get(self.file.holder(at))
        if found is None:
            raise Unfixable("in the header of an exception handler")
        return found

    # Text

    @property
    def lines(self) -> list[str]:
        return self.file.lines

    @cached_property
    def quote(self) -> str:
        """The quotation mark that the file prefers."""
        text = self.file.source.text
        return "'" if text.count("'") > text.count('"') else '"'

    def position(self, at: int) -> Position:
        return self.file.position(at)

    def source(self, at: int) -> str:
        """The text of a node."""
        return self.file.text(self.position(at))

    def may_be_imported_elsewhere(self, name: str) -> bool:
        """Whether a file that was not read may import a name from this one; without ``thorough`` nobody looks."""
        own = self.project.name(self.module).rpartition(".")[2]
        return self._thorough and all(self.project.mentioned_elsewhere(word) for word in (own, name))

    def has_name(self, name: str, where: Where) -> bool:
        """Whether a library of this name is bound to that name, seen from a place."""
        return self.project.qualified(self.module, ir.Name(0, name), where.scope) == name

    # Edits

    def edit(self, line: int, column: int, end_line: int, end_column: int, text: str) -> Edit:
        """An edit of the text, placed in the file or cell. Raises Unfixable when it would span two cells."""
        cell, first = self.file.source.place(line)
        end_cell, last = self.file.source.place(end_line)
        if cell != end_cell:
            raise Unfixable("spans two cells")
        return Edit(self.file.source.path, first, column, last, end_column, text, cell)

    def replace(self, at: int, text: str) -> Edit:
        """Put a text in the place of a node."""
        place = self.position(at)
        return self.edit(place.line, place.column, place.end_line, place.end_column, text)

    def before(self, at: int, text: str) -> Edit:
        """Insert a text straight before a node."""
        place = self.position(at)
        return self.edit(place.line, place.column, place.line, place.column, text)

    def after(self, at: int, text: str) -> Edit:
        """Insert a text straight behind a node."""
        place = self.position(at)
        return self.edit(place.end_line, place.end_column, place.end_line, place.end_column, text)

    def statement_before(self, node: ir.Stmt, code: str, then: str = "") -> Edit:
        """Insert a line before ``node``, and ``then`` before the node on its own line."""
        place = self.position(node.at)
        return self.edit(place.line, place.column, place.line, place.column, f"{code}\n{self.indent(node)}{then}")

    def statement_after(self, node: ir.Stmt, code: str) -> Edit:
        """Insert a statement on a line of its own behind ``node``, and behind the comment on its line."""
        place = self.position(node.at)
        rest = self.lines[place.end_line - 1][place.end_column - 1 :]
        if isinstance(node, _COMPOUND) or not _REST_OF_LINE.match(rest):
            raise Unfixable("the statement does not end its line")
        column = len(self.lines[place.end_line - 1]) + 1
        return self.edit(place.end_line, column, place.end_line, column, f"\n{self.indent(node)}{code}")

    def indent(self, node: ir.Stmt) -> str:
        """The white space before a statement that begins its line. Raises Unfixable for one that does not."""
        place = self.position(node.at)
        before = self.lines[place.line - 1][: place.column - 1]
        if before.strip() or isinstance(node, _COMPOUND):
            raise Unfixable("the statement does not begin its line, or has a body")
        return before

    def without_statement(self, node: ir.Stmt) -> Edit:
        """Take a statement out, with its line and the comment there; ``pass`` is put for the only one of a body."""
        place = self.position(node.at)
        if self._is_alone(node):
            return self.replace(node.at, "pass")
        self.indent(node)
        if not _REST_OF_LINE.match(self.lines[place.end_line - 1][place.end_column - 1 :]):
            raise Unfixable("something else stands on the line")
        return self.edit(place.line, 1, place.end_line + 1, 1, "")

    def _is_alone(self, node: ir.Stmt) -> bool:
        return any(len(body) == 1 and body[0] is node for body in _all_bodies(self.module.body))

    # Arguments

    def open_parenthesis(self, call: ir.Call) -> tuple[int, int]:
        """Where the arguments of a call begin: the line and column behind its parenthesis."""
        place = self.position(call.func.at)
        line, column = place.end_line, place.end_column
        while line <= len(self.lines):
            rest = self.lines[line - 1][column - 1 :]
            stripped = rest.lstrip(" \t)")
            if stripped.startswith("("):
                return line, column + len(rest) - len(stripped) + 1
            if stripped and not stripped.startswith(("#", "\\")):
                break
            line, column = line + 1, 1
        raise Unfixable("no parenthesis")

    def first_argument(self, call: ir.Call, text: str) -> Edit:
        """Insert an argument before all others, on the line of the first."""
        line, column = self.open_parenthesis(call)
        if not call.args:
            return self.edit(line, column, line, column, text)
        if _REST_OF_LINE.match(self.lines[line - 1][column - 1 :]):
            line, column = self._begin(call, call.args[0])
        return self.edit(line, column, line, column, f"{text}, ")

    def _begin(self, call: ir.Call, arg: ir.Arg) -> tuple[int, int]:
        """Where an argument begins: its keyword or stars, or its own parentheses."""
        place = self.position(arg.value.at)
        line, column = place.line, place.column
        if arg.keyword is not None:
            head = re.search(rf"\b{re.escape(arg.keyword)}\s*=\s*\(*\Z", self.lines[line - 1][: column - 1])
            if head is None:
                raise Unfixable("the keyword stands on another line")
            return line, head.start() + 1
        limit = self.open_parenthesis(call)
        text = self.lines[line - 1]
        while (line, column) > limit and column > 1 and text[column - 2] in "(* \t":
            column -= 1
        while text[column - 1] in " \t":
            column += 1
        return line, column

    def argument_span(self, call: ir.Call, index: int) -> Position:
        """An argument with its keyword, and the comma that goes with it when it is taken out."""
        arg = call.args[index]
        place = self.position(arg.value.at)
        begin = self._begin(call, arg)
        if index + 1 < len(call.args):
            following = self.argument_span(call, index + 1)
            return Position(*begin, following.line, following.column)
        if index == 0:
            return Position(*begin, place.end_line, place.end_column)
        previous = self.position(call.args[index - 1].value.at)
        return Position(previous.end_line, previous.end_column, place.end_line, place.end_column)

    def without_argument(self, call: ir.Call, index: int) -> Edit:
        """Take an argument out."""
        place = self.argument_span(call, index)
        return self.edit(place.line, place.column, place.end_line, place.end_column, "")

    def named(self, call: ir.Call, parameters: Sequence[str]) -> list[Edit]:
        """Give positional arguments the names that they have by position. Raises Unfixable behind ``*args``."""
        edits = []
        for index, arg in enumerate(call.args):
            if arg.star == "*" or (arg.keyword is None and not arg.star and index >= len(parameters)):
                raise Unfixable("arguments whose number is unknown")
            if arg.keyword is None and not arg.star:
                line, column = self._begin(call, arg)
                edits.append(self.edit(line, column, line, column, f"{parameters[index]}="))
        return edits


_COMPOUND = (ir.If, ir.For, ir.While, ir.With, ir.Try, ir.Match, ir.Function, ir.Class)


def _all_bodies(body: Sequence[ir.Stmt]) -> Iterator[Sequence[ir.Stmt]]:
    yield body
    for node in body:
        inner = (node.body,) if isinstance(node, (ir.Function, ir.Class)) else bodies(node)
        for each in inner:
            yield from _all_bodies(each)


def fix(safe: bool, description: str, *edits: Edit) -> Fix:
    """A repair; its edits are applied together or not at all."""
    return Fix(safe, description, edits)
