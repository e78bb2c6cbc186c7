"""The region that a framework enters around the steps of the models it trains."""

from __future__ import annotations

from collections.abc import Iterator

from amp_audit.static.binding.project import ClassRef, Project
from amp_audit.static.dtypes.values import Region
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import parts

_MODULE, _TRAINER = "lightning.pytorch.LightningModule", "lightning.pytorch.Trainer"
_DTYPES = {16: "float16", "16": "float16", "16-mixed": "float16", "bf16": "bfloat16", "bf16-mixed": "bfloat16"}
_OUTSIDE = frozenset({"__init__", "setup", "configure_optimizers", "configure_model", "prepare_data"})
"""Methods that Lightning calls outside of its region."""


class Steps:
    """What Lightning runs under its own autocast in a project all of whose Trainers have one mixed precision."""

    def __init__(self, project: Project) -> None:
        self.project = project
        said = set(_precisions(project))
        dtypes = {_DTYPES.get(each) if isinstance(each, (int, str)) else None for each in said}
        only = dtypes.pop() if len(dtypes) == 1 else None
        self._region = Region("cuda", frozenset({only})) if only is not None else None

    @property
    def are_low(self) -> bool:
        """Whether they run in low precision."""
        return self._region is not None

    def region(self, function: ir.Function, cls: ClassRef | None) -> Region | None:
        """The region in which a method runs that the framework calls, or its steps do."""
        if self._region is None or cls is None or function.name in _OUTSIDE or function.decorators:
            return None
        return self._region if self.project.is_subclass(cls, _MODULE) else None

    def is_one(self, function: ir.Function, cls: ClassRef | None) -> bool:
        """Whether a method is a step that the framework calls in its region."""
        return function.name.endswith("_step") and self.region(function, cls) is not None


def _precisions(project: Project) -> Iterator[object]:
    """What the Trainers of a project are told, each once; None for what is no literal, or is left out."""
    for module in project.modules.values():
        for part in parts(module.body, into=True) if "Trainer" in module.words else ():
            if isinstance(part, ir.Call) and project.called(module, part.func) == _TRAINER:
                given = next((arg.value for arg in part.args if arg.keyword == "precision"), None)
                yield given.value if isinstance(given, ir.Const) else None
