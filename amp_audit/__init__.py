"""amp-audit: finds mixed-precision mistakes in PyTorch training programs by reading them and by watching them run."""

from __future__ import annotations

__version__ = "0.1.0"
