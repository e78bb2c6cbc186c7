"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# What these assert for tests that have no assert of their own is explained like theirs.
pytest.register_assert_rewrite("tests.static.dtypes.judging")

# torchrun's own way of having an option set: each launch finds a free port, so that tests do not meet at one.
os.environ["PET_STANDALONE"] = "1"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Results are not kept where the user keeps them, nor taken from there; processes of a test inherit it."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before
