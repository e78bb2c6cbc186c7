"""Found by Python at its start through ``PYTHONPATH``: attaches amp-audit, then makes way for what it shadows."""

import os
import sys


def _attach(here: str) -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    sys.path.append(root)  # amp_audit may be installed for another interpreter than this one
    try:
        from amp_audit.runtime import attach

        attach.attach()
    finally:
        sys.path.remove(root) if sys.path[-1] != root else sys.path.pop()


def _make_way(here: str) -> None:
    """Run the sitecustomize that would have been found without us, and leave no trace in ``sys.path``."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


_here = os.path.dirname(os.path.abspath(__file__))
try:
    _attach(_here)
except Exception as error:
    print(f"amp-audit: this process is not audited: {type(error).__name__}: {error}", file=sys.stderr)
_make_way(_here)
