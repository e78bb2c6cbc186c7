"""The look that the terminal renderers share."""

from __future__ import annotations

from amp_audit.model import Severity

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
