"""Names that programs give to things of the world outside, and what they tell."""

from __future__ import annotations

import re

BORN_IN_BFLOAT16 = re.compile(
    r"(^|[/_-])(flan-?t5|u?mt5|byt5|t5|longt5|t0|ul2|pegasus|gemma)([-_.\d]|$)", re.IGNORECASE
)
"""Names of pretrained models whose activations go beyond float16, being trained in bfloat16 on TPUs."""
