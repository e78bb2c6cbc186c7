"""Records do what frozen dataclasses do, as far as anybody asks."""

from __future__ import annotations

import dataclasses

import pytest

from amp_audit.records import record, replace


@record(frozen=True, slots=True)
class Pair:
    left: object
    right: tuple[int, ...] = ()


@record(frozen=True, slots=True)
class Named:
    name: str
    noise: object = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


@record(frozen=True, slots=True, eq=False)
class Single:
    value: int


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    left: object
    right: tuple[int, ...] = ()


def test_equal_by_class_and_fields() -> None:
    assert Pair(1, (2,)) == Pair(1, (2,)) != Pair(1, (3,))
    assert len({Pair(1, (2,)), Pair(1, (2,)), Pair("1", (2,))}) == 2
    assert Pair(1) != Frozen(1)


def test_own_equality_is_kept() -> None:
    assert Named("a", 1) == Named("a", 2) and len({Named("a", 1), Named("a", 2)}) == 1


def test_without_equality_each_is_itself() -> None:
    one = Single(1)
    assert one == one != Single(1)
    assert len({one, Single(1)}) == 2


@pytest.mark.parametrize("kind", [Pair, Frozen])
def test_replace_copies_and_changes(kind: type) -> None:
    before = kind("x", (1, 2))
    after = replace(before, right=(3,))
    assert (before, after) == (kind("x", (1, 2)), kind("x", (3,))) and type(after) is kind
    with pytest.raises((AttributeError, TypeError)):
        replace(before, middle=1)


def test_shown_as_a_dataclass_is() -> None:
    assert repr(Pair("x", (1,))) == repr(Frozen("x", (1,))).replace("Frozen", "Pair")


def test_nothing_else_can_be_set() -> None:
    with pytest.raises(AttributeError):
        Pair(1).middle = 2  # type: ignore[attr-defined]


def test_what_it_does_not_do_is_refused() -> None:
    with pytest.raises(TypeError, match="no such fields"):

        @record(frozen=True, slots=True)
        class Later:
            name: str
            size: int = dataclasses.field(init=False, default=0)

    with pytest.raises(TypeError, match="no such fields"):

        @record(frozen=True)
        class Checked:
            name: str

            def __post_init__(self) -> None: ...


def test_each_gets_a_default_of_its_own() -> None:
    @record(frozen=True, slots=True)
    class Held:
        FACTORY: int = 3
        items: list[int] = dataclasses.field(default_factory=list)

    assert Held().FACTORY == 3 and Held().items == [] and Held().items is not Held().items
