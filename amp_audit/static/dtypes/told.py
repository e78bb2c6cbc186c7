"""The precision that frameworks are told to train in, and what they run in a region of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from amp_audit.static.binding.project import ClassRef, Project
from amp_audit.static.dtypes.values import Region
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import parts

_MODULE, _TRAINER = "lightning.pytorch.LightningModule", "lightning.pytorch.Trainer"
_ARGUMENTS = frozenset({"transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments"})
_ACCELERATOR = "accelerate.Accelerator"
_WORDS = frozenset({"Trainer", "TrainingArguments", "Seq2SeqTrainingArguments", "Accelerator"})
_DTYPES = {16: "float16", "16": "float16", "16-mixed": "float16", "bf16": "bfloat16", "bf16-mixed": "bfloat16"}
_FLAGS = {"fp16": "float16", "bf16": "bfloat16"}
_OUTSIDE = frozenset({"optimizer_step", "lr_scheduler_step"})
"""Steps that Lightning calls outside of its region, as it does all other hooks."""


class Told:
    """What the frameworks of a project are told by literals. ``regions``: those that they train in, by the modules that
    say so.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.regions: dict[str, set[Region]] = {}
        steps: set[Region | None] = set()
        for module in project.modules.values():
            for name, region in _regions(module, project):
                if name == _TRAINER:
                    steps.add(region)
                if region is not None:
                    self.regions.setdefault(module.path, set()).add(region)
        self._region = steps.pop() if len(steps) == 1 else None

    def region(self, function: ir.Function, cls: ClassRef | None) -> Region | None:
        """The region in which a method runs that Lightning calls, or its steps do, where all Trainers agree."""
        if self._region is None or cls is None or function.name in _OUTSIDE or function.decorators:
            return None
        if function.name != "forward" and not function.name.endswith("_step"):
            return None
        return self._region if self.project.is_subclass(cls, _MODULE) else None

    def is_step(self, function: ir.Function, cls: ClassRef | None) -> bool:
        """Whether a method is a step that Lightning calls in its region."""
        return function.name.endswith("_step") and self.region(function, cls) is not None


def _regions(module: ir.Module, project: Project) -> Iterator[tuple[str, Region | None]]:
    """Each framework that a module tells a precision, and its region; None for what is no literal, or float32."""
    for part in parts(module.body, into=True) if not _WORDS.isdisjoint(module.words) else ():
        name = project.called(module, part.func) if isinstance(part, ir.Call) else None
        if not isinstance(part, ir.Call) or name not in (_TRAINER, *_ARGUMENTS, _ACCELERATOR):
            continue
        said = {arg.keyword: arg.value.value for arg in part.args if isinstance(arg.value, ir.Const)}
        dtype = _dtype(name, said)
        on_cpu = said.get("accelerator") == "cpu" or True in (said.get("use_cpu"), said.get("cpu"))
        yield name, Region("cpu" if on_cpu else "cuda", frozenset({dtype})) if dtype is not None else None


def _dtype(name: str, said: Mapping[str | None, object]) -> str | None:
    """The dtype of a framework's region, by what its constructor is told."""
    if name == _TRAINER:
        precision = said.get("precision")
        return _DTYPES.get(precision) if isinstance(precision, (int, str)) else None
    if name in _ARGUMENTS:
        return next((dtype for word, dtype in _FLAGS.items() if said.get(word) is True), None)
    return _FLAGS.get(str(said.get("mixed_precision")))
