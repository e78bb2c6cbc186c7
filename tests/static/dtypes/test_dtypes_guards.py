"""Which questions for the scale ask whether a step was skipped."""

from __future__ import annotations

import pytest

from amp_audit.static.dtypes.guards import skip_guards
from amp_audit.static.source.lowering import lower


@pytest.mark.parametrize(
    ("before", "test", "asking"),
    [
        ("before = scaler.get_scale()", "scaler.get_scale() < before", 2),
        ("self.before = scaler.get_scale()", "scaler.get_scale() < self.before", 2),
        ("before = scaler.get_scale()", "scaler.get_scale() < 1.0", 0),
        ("logs['scale'] = scaler.get_scale()", "scaler.get_scale() < 1.0", 0),
        ("logs['scale'] = scaler.get_scale()", "scaler.get_scale() < limits['scale']", 0),
        ("logs[0].scale = scaler.get_scale()", "scaler.get_scale() < limits[1].scale", 0),
    ],
)
def test_a_scale_that_is_compared_with_the_one_before_is_a_guard(before: str, test: str, asking: int) -> None:
    module = lower("m.py", f"{before}\nscaler.step(optimizer)\nscaler.update()\nif {test}:\n    pass\n")
    assert len(skip_guards(module)) == asking
