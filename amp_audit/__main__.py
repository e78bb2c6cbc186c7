"""``python -m amp_audit``."""

from __future__ import annotations

import sys

from amp_audit.cli import main

if __name__ == "__main__":
    sys.exit(main())
