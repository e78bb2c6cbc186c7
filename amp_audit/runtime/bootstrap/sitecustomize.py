"""Found by Python at its start through ``PYTHONPATH``: attaches amp-audit, then makes way for what it shadows.

Every Python process below an audited one runs this, most of them for nothing: so it imports nothing, and the rest of
amp-audit only when the process has imported torch.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # what typing would say, without importing it
if TYPE_CHECKING:
    from typing import Any

_SESSION = "AMP_AUDIT_SESSION"
_MAIN = "AMP_AUDIT_MAIN"
_HERE = os.path.dirname(os.path.abspath(__file__))


class _Finder:
    """Acts right after ``import torch``, by whatever means torch is imported."""

    def __init__(self, session: str, main: bool) -> None:
        self._session = session
        self._main = main

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        spec: Any = None
        for finder in sys.meta_path:
            if finder is not self and spec is None:
                spec = finder.find_spec(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module  # the loader is as it was found again
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _begin(self._session, self._main)

        loader.exec_module = exec_module


def _begin(session: str, main: bool) -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    sys.path.append(root)  # amp_audit may be installed for another interpreter than this one
    try:
        from amp_audit.runtime import attach

        attach.begin(session, main)
    except Exception as error:
        print(f"amp-audit: this process is not audited: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(root)]


def _make_way() -> None:
    """Run the sitecustomize that would have been found without us, and leave nothing in ``sys.path``."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


if _SESSION in os.environ:
    sys.meta_path.insert(0, _Finder(os.environ[_SESSION], os.environ.pop(_MAIN, None) is not None))
_make_way()
