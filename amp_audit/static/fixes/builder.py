"""Findings -> the repairs that come with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from amp_audit.model import Edit, Fix
from amp_audit.static.binding.origins import Origins
from amp_audit.static.binding.project import Project
from amp_audit.static.findings import File
from amp_audit.static.fixes import api, dtypes, order
from amp_audit.static.fixes.draft import Draft, Unfixable
from amp_audit.static.raw import RawFinding

_REPAIRS: Mapping[str, Callable[[RawFinding, Draft], Fix]] = {
    "AMP101": api.deprecated,
    "AMP103": api.positional,
    "AMP104": api.bad_argument,
    "AMP202": order.unscale_before,
    "AMP203": order.step_through_scaler,
    "AMP204": order.scale_before_backward,
    "AMP205": order.update_after,
    "AMP302": order.backward_after,
    "AMP315": dtypes.with_logits,
    "AMP401": dtypes.without_cast,
    "AMP407": dtypes.float_before_numpy,
    "AMP501": dtypes.largest_of_dtype,
    "AMP803": order.through_accelerator,
    "AMP804": api.lightning_word,
}


class Builder:
    """Makes the repairs of one project's findings; ``notes`` are the errors of its own.

    ``thorough``: files that were not read are looked through for what a repair could break.
    """

    def __init__(self, project: Project, *, thorough: bool = False) -> None:
        self._thorough = thorough
        self.notes: list[str] = []
        self._project = project
        self._origins = Origins(project)
        self._drafts: dict[str, Draft] = {}

    def of(self, raw: RawFinding, file: File) -> Fix | None:
        """The repair of a finding; None where there is none, or none that is surely meant."""
        repair = _REPAIRS.get(raw.rule.id)
        if repair is None:
            return None
        path = file.source.path
        if path not in self._drafts:
            self._drafts[path] = Draft(file, self._project, self._origins, thorough=self._thorough)
        try:
            found = repair(raw, self._drafts[path])
        except Unfixable:
            return None
        except Exception as error:  # a repair that cannot be built must not cost the finding
            self.notes.append(f"{path}: internal error in the repair of {raw.rule.id}: {type(error).__name__}: {error}")
            return None
        return found if not _overlap(found.edits) else None


def _overlap(edits: tuple[Edit, ...]) -> bool:
    """Whether two edits of one repair touch the same text, or insert at the same place."""
    spans = sorted(
        ((edit.cell or 0, edit.line, edit.column), (edit.cell or 0, edit.end_line, edit.end_column)) for edit in edits
    )
    return any(left[1] > right[0] or left == right for left, right in itertools.pairwise(spans))
