"""Lowering held against ``ast``, which reads the same files another way, and against Python's own positions.

Every test is of both readers: Python's own parser and libcst, which must agree in all that they say.
"""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amp_audit.static.source import concrete, ir, lowering
from amp_audit.static.source.deep import with_deep_stack
from amp_audit.static.source.position import LoweringError, Position
from amp_audit.static.source.sources import Unreadable, decode
from amp_audit.static.source.traverse import bodies, children, expressions, statements, walk

STDLIB = Path(sysconfig.get_paths()["stdlib"])
HERE = Path(__file__).resolve().parents[2]
FILES = [
    *sorted(STDLIB.glob("*.py"))[::6],
    *sorted((STDLIB / "asyncio").glob("*.py")),
    *sorted((STDLIB / "test").glob("test_[adfglmpstuw]*.py"))[::12],
    *sorted((HERE / "amp_audit").rglob("*.py")),
]


READERS = [lowering, concrete]
_reader = lowering


@pytest.fixture(params=READERS, ids=["own", "libcst"], autouse=True)
def reader(request: pytest.FixtureRequest) -> Iterator[None]:
    global _reader
    _reader = request.param
    yield
    _reader = lowering


def lower(path: str, source: str) -> ir.Module:
    return _reader.lower(path, source)


def positions(source: str) -> Callable[[int], Position]:
    return _reader.positions(source)


def text_of(path: Path) -> str:
    return decode(str(path), path.read_bytes()).text


def one(source: str) -> ir.Expr:
    statement = lower("x.py", source + "\n").body[-1]
    assert isinstance(statement, (ir.Evaluate, ir.Assign))
    return statement.value


# The same definitions, calls and names as ast sees


def ast_definitions(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name
            outside = [*node.decorator_list, node.args]
            for part in outside:
                yield from ast_definitions(part, prefix)
            yield from ast_definitions(ast.Module(node.body, []), f"{prefix}{node.name}.<locals>.")
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name
            for part in (*node.decorator_list, *node.bases, *node.keywords):
                yield from ast_definitions(part, prefix)
            yield from ast_definitions(ast.Module(node.body, []), f"{prefix}{node.name}.")
        elif isinstance(node, ast.Lambda):
            yield f"{prefix}<lambda>"
            yield from ast_definitions(node.args, prefix)
            yield from ast_definitions(ast.Expression(node.body), f"{prefix}<lambda>.<locals>.")
        elif not _is_left_out(node):
            yield from ast_definitions(node, prefix)
    return


def _is_left_out(node: ast.AST) -> bool:
    """Parts of a program that facts leave out on purpose: messages of asserts, causes, annotations of results."""
    return getattr(node, "left_out", False)


def mark_left_out(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.Assert):
            parts = [node.msg]
        elif isinstance(node, ast.Raise):
            parts = [node.cause]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts = [node.returns, *getattr(node, "type_params", ())]
        elif isinstance(node, ast.ClassDef):
            parts = list(getattr(node, "type_params", ()))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            parts = [node.annotation]
        elif isinstance(node, ast.match_case):
            parts = [] if _is_values(node.pattern) else [node.pattern]
        for part in parts:
            if part is not None:
                part.left_out = True  # type: ignore[attr-defined]


def _is_values(pattern: ast.pattern) -> bool:
    if isinstance(pattern, ast.MatchOr):
        return all(map(_is_values, pattern.patterns))
    if isinstance(pattern, ast.MatchAs):
        return pattern.pattern is not None and _is_values(pattern.pattern)
    return isinstance(pattern, (ast.MatchValue, ast.MatchSingleton))


def ast_walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not _is_left_out(child):
            yield from ast_walk(child)


def all_expressions(body: tuple[ir.Stmt, ...]) -> Iterator[ir.Expr]:
    for statement in statements(body, into=True):
        for expression in expressions(statement):
            yield from with_lambdas(expression)


def with_lambdas(expression: ir.Expr) -> Iterator[ir.Expr]:
    for part in walk(expression):
        yield part
        if isinstance(part, ir.Lambda):
            yield from all_expressions(part.function.body)


def definitions(module: ir.Module) -> Iterator[str]:
    for statement in statements(module.body, into=True):
        if isinstance(statement, (ir.Function, ir.Class)):
            yield statement.qualname
    for expression in all_expressions(module.body):
        if isinstance(expression, ir.Lambda):
            yield expression.function.qualname


@pytest.mark.parametrize("path", FILES[::3], ids=lambda path: path.name)
def test_both_readers_say_the_same(path: Path) -> None:
    source = text_of(path)
    own, other = lowering.lower("x.py", source), concrete.lower("x.py", source)
    assert with_deep_stack(lambda: own == other)
    here, there = lowering.positions(source), concrete.positions(source)
    calls = [part.at for part in all_expressions(own.body) if isinstance(part, (ir.Call, ir.Attr, ir.Const, ir.Binary))]
    # `with (a as b):` has its closing bracket here and not there.
    headers = [s.at for s in statements(own.body, into=True) if not isinstance(s, ir.With)]
    places = [*calls, *headers]
    assert [here(at) for at in places] == [there(at) for at in places]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_same_definitions_calls_and_lines_as_ast(path: Path) -> None:
    try:
        source = text_of(path)
    except Unreadable:
        pytest.skip("a test of Python for bad encodings")
    try:
        tree = ast.parse(source)
    except SyntaxError:
        with pytest.raises(LoweringError):
            lower(str(path), source)
        return
    mark_left_out(tree)
    module = lower(str(path), source)
    assert Counter(definitions(module)) == Counter(ast_definitions(tree))
    where = positions(source)
    ours = Counter(where(part.at).line for part in all_expressions(module.body) if isinstance(part, ir.Call))
    theirs = Counter(node.lineno for node in ast_walk(tree) if isinstance(node, ast.Call))
    assert ours == theirs
    names = {node.id for node in ast_walk(tree) if isinstance(node, ast.Name)}
    assert names - module.words == set()


def test_ordinals_are_unique_and_ascend_through_statements() -> None:
    source = text_of(STDLIB / "argparse.py")
    module = lower("argparse.py", source)
    found = [s.at for s in statements(module.body, into=True)]
    found += [e.at for e in all_expressions(module.body)]
    assert len(set(found)) == len(found)
    flat = [s.at for s in statements(module.body, into=True)]
    assert flat == sorted(flat)


def test_lowered_modules_survive_pickling() -> None:
    module = lower("argparse.py", text_of(STDLIB / "argparse.py"))
    assert pickle.loads(pickle.dumps(module)) == module


# Values of literals, by Python's own reading of them

LITERALS = [
    "1_000",
    "0x_ff",
    "0b11",
    "0o17",
    "00",
    "1e-9",
    "-1e9",
    "-(2)",
    "+3",
    "- -3",
    "1_0.5_0",
    "2j",
    "'a' \"b\" '''c\nd'''",
    "b'x' b'\\x00'",
    "r'\\d'",
    "'\\d'",
    "u'é'",
    "'\\N{BULLET}'",
    "None",
    "True",
    "...",
    "Rb'\\n'",
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", LITERALS)
def test_literals_have_pythons_value(text: str) -> None:
    found = one(f"x = {text}")
    assert isinstance(found, ir.Const)
    expected = eval(text)
    assert found.value == expected
    assert type(found.value) is type(expected)


def test_a_negated_bool_is_no_folded_number() -> None:
    assert isinstance(one("x = -True"), ir.Unary)


@pytest.mark.parametrize("text", ["'\\N{no such name}'", "b'\\xzz'", "'a' b'b'", "9" * 5000])
def test_literals_that_python_refuses_are_refused_in_their_line(text: str) -> None:
    with pytest.raises(LoweringError) as caught:
        lower("x.py", f"y = 1\nx = {text}\n")
    assert caught.value.line == 2


# Shapes


def test_subscripts_of_one_and_several() -> None:
    assert isinstance(one("x[1]"), ir.Subscript)
    single, several, tail = one("x[1,]"), one("x[1:2, ..., *y]"), one("x[::2]")
    assert isinstance(single, ir.Subscript) and isinstance(single.index, ir.Sequence)
    assert isinstance(several, ir.Subscript) and isinstance(several.index, ir.Sequence)
    assert [type(item) for item in several.index.items] == [ir.Slice, ir.Const, ir.Starred]
    assert isinstance(tail, ir.Subscript) and isinstance(tail.index, ir.Slice) and tail.index.lower is None


def test_imports_bind_and_load() -> None:
    source = (
        "import a.b, c.d as e\nfrom a.b import c as d, e\nfrom . import f\nfrom ..g.h import i\nfrom .j import *\n"
        "from k import (\n    l,\n    m as n,\n)\n"
    )
    found = [s for s in lower("x.py", source).body if isinstance(s, ir.Import)]
    assert [s.bindings for s in found] == [
        (("a", "a"), ("e", "c.d")),
        (("d", "a.b.c"), ("e", "a.b.e")),
        (("f", ".f"),),
        (("i", "..g.h.i"),),
        (("*", ".j"),),
        (("l", "k.l"), ("n", "k.m")),
    ]
    assert found[0].loads == ("a.b", "c.d")


def test_functions_know_what_they_are() -> None:
    source = (
        "class A:\n"
        "    @deco\n"
        "    async def f(self, a, /, b: int = 1, *c, d=2, **e):\n"
        "        def g():\n"
        "            yield word\n"
        "        return [x async for x in y]\n"
        "h = lambda: (yield)\n"
    )
    cls, assign = lower("x.py", source).body
    assert isinstance(cls, ir.Class) and isinstance(assign, ir.Assign)
    f = cls.body[0]
    assert isinstance(f, ir.Function)
    assert [(p.name, p.kind) for p in f.params] == [
        ("self", "positional"),
        ("a", "positional"),
        ("b", "positional"),
        ("c", "args"),
        ("d", "keyword"),
        ("e", "kwargs"),
    ]
    g = f.body[0]
    assert isinstance(g, ir.Function)
    assert (f.qualname, f.is_async, f.is_generator) == ("A.f", True, False)
    assert (g.qualname, g.is_generator) == ("A.f.<locals>.g", True)
    assert "word" in f.words and "word" in cls.words and "deco" not in f.words
    assert isinstance(assign.value, ir.Lambda) and assign.value.function.is_generator


def test_match_binds_names_and_keeps_plain_values() -> None:
    source = (
        "match x:\n"
        "    case {'k': [a, *b], **c} if a: pass\n"
        "    case Point(x=d) as e: pass\n"
        "    case -1 | None: pass\n"
        "    case 'fp16': pass\n"
        "    case mod.CONST as f: pass\n"
        "    case 'a' | Point(): pass\n"
        "    case Point(): pass\n"
        "    case _: pass\n"
        "    case g: pass\n"
    )
    found = lower("x.py", source).body[0]
    assert isinstance(found, ir.Match)
    names = [sorted(case.names) for case in found.cases]
    assert names == [["a", "b", "c"], ["d", "e"], [], [], ["f"], [], [], [], ["g"]]
    taken = [case.values for case in found.cases]
    assert [each if each is None else len(each) for each in taken] == [0, 0, 2, 1, 1, 0, 0, None, None]
    ((text,), (constant,)) = (taken[3] or (), taken[4] or ())
    assert isinstance(text, ir.Const) and text.value == "fp16"
    assert isinstance(constant, ir.Attr)
    assert found.cases[0].guard is not None


def test_try_star_type_alias_and_type_parameters() -> None:
    source = "try:\n    a()\nexcept* E as e:\n    b()\ntype X[T] = list[T]\ndef f[T: int](x: T) -> T: ...\n"
    star, alias, function = lower("x.py", source).body
    assert isinstance(star, ir.Try) and star.handlers[0].name == "e"
    assert isinstance(alias, ir.Assign) and isinstance(function, ir.Function)
    assert len(bodies(star)) == 4


# Positions


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("@deco(\n  1)\nasync def f(a,\n  b):\n    pass\n", "async def f"),
        ("# c\n\nwith a(\n    1) as b, c:\n    pass\n", "with a(\n    1) as b, c"),
        ("if x:\n    pass\nelif y(): # z\n    pass\n", "if x"),
        ("for i in r(\n 1):\n    pass\n", "for i in r(\n 1)"),
        ("while (t):\n    pass\n", "while (t)"),
        ("class A(B, c=1):\n    pass\n", "class A"),
        ("    \nx = (1 +\n     2)  # end\n", "x = (1 +\n     2)"),
    ],
)
def test_a_statement_stands_at_its_header(source: str, text: str) -> None:
    place = positions(source)(lower("x.py", source).body[0].at)
    lines = source.split("\n")[place.line - 1 : place.end_line]
    lines[-1] = lines[-1][: place.end_column - 1]
    lines[0] = lines[0][place.column - 1 :]
    assert "\n".join(lines) == text


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_and_columns_are_pythons_whatever_the_newline(newline: str) -> None:
    source = newline.join(["# ü", "é = '''a", "b'''; f(é)", "\tg()", ""]).replace("\tg", "if é: g")
    found = lower("x.py", source)
    calls = sorted(p.at for p in all_expressions(found.body) if isinstance(p, ir.Call))
    where = positions(source)
    ours = [(where(at).line, where(at).column) for at in calls]
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    theirs = sorted(
        (node.lineno, len(lines[node.lineno - 1].encode()[: node.col_offset].decode()) + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
    )
    assert ours == theirs


@pytest.mark.parametrize(
    "source",
    [
        "x[*a]",
        "x[*a,]",
        "x[a,]",
        "del x,",
        "del (x, y)",
        "del x, y",
        "ﬁ.ｗｉｄｔｈ(ｋ=1)",
        "f(*a, k=1, *b, **c)",
        "f(k=1, *b)",
    ],
)
def test_odd_shapes_have_the_same_ordinals(source: str) -> None:
    assert lowering.lower("x.py", source) == concrete.lower("x.py", source)


# Hostile sources


@pytest.mark.parametrize(
    "source",
    [
        "def f(:\n",
        "x = 'unterminated\n",
        "print 'two'\n",
        "if x:\npass\n",
        "x = 1\n\tif y:\n",
    ],
)
def test_what_is_no_python_is_an_error_with_a_place(source: str) -> None:
    with pytest.raises(LoweringError) as caught:
        lower("x.py", source)
    assert caught.value.line >= 1 and caught.value.column >= 1
    assert str(caught.value).strip()


def test_a_sum_of_a_thousand_terms_is_read() -> None:
    found = one("x = " + " + ".join(["a()"] * 1000))
    count = with_deep_stack(lambda: sum(isinstance(part, ir.Call) for part in walk(found)))
    assert count == 1000


@pytest.mark.parametrize(
    "source",
    ["x = " + "(" * 30_000 + ")" * 30_000, "x = " + "-" * 60_000 + "1", "x = " + " + ".join(["a"] * 20_000)],
    ids=["brackets", "signs", "sum"],
)
def test_nesting_beyond_python_ends_in_an_error_not_in_a_crash(source: str) -> None:
    code = (
        "import sys; from amp_audit.static.source.lowering import lower, LoweringError\n"
        "try: lower('x.py', sys.stdin.read())\nexcept LoweringError as e: print('refused', e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=source, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.startswith("refused")


def test_children_visit_each_expression_once() -> None:
    source = (
        "f(a, *b, k=c[d:e, g], **h)[lambda q=i: j]"
        "(l if m else n, {o: p, **r}, (s, *t), [u for v in w if x], f'{y:{z}}')"
    )
    found = [part.id for part in walk(one(source)) if isinstance(part, ir.Name)]
    assert sorted(found) == list("abcdefghilmnoprstuvwxyz")
    assert children(ir.Const(0, 1)) == []


def test_imports_are_those_of_code_that_may_run() -> None:
    source = "import a\nif 0:\n    import b\ndef f():\n    import c\nclass D:\n    from e import g\n"
    found = [target for node in lowering.lower("m.py", source).imports for _, target in node.bindings]
    assert found == ["a", "c", "e.g"]
