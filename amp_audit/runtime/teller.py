"""What all wrappers share: the session they speak to, whose gradients are whose, and the guard around their work."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from amp_audit.events import Kind
from amp_audit.runtime.frames import is_thrown_in
from amp_audit.runtime.owners import Owner, Owners, low_dtype
from amp_audit.runtime.parts import Host, Listener
from amp_audit.runtime.passes import Passes
from amp_audit.runtime.patches import Patches
from amp_audit.runtime.queue import Queue
from amp_audit.trace.schema import EventRow, Place

_BY_TRAINING = frozenset({Kind.SCALE, Kind.BACKWARD, Kind.STEP})
"""What a thread does after it has said that it trains."""


class Teller:
    """Tells the session of events. ``thread`` is the one that trains: the latest to scale, to go backward or to step.

    ``current_scale`` is the live scale tensor of the scaler that scaled last; ``backwards`` counts the outermost ones.
    ``leave_regions``: tell that all regions are left that were entered; whether there were some. ``parallel``: several
    threads train at once. Nothing is told from then on: in the order of one thread the events of the other make no
    sense, and which one is inside of which region is known to the threads alone. ``order``: held while it is
    settled who trains, and while a region is entered or left, so that what one thread does is not told inside another
    one's region. ``passes``: the backward passes that run.
    """

    def __init__(self, host: Host) -> None:
        self.active = False
        self.host = host
        self.owners = Owners()
        self.patches = Patches()
        self.queue = Queue()
        self.thread = threading.get_ident()
        self.current_scale: torch.Tensor | None = None
        self.backwards = 0
        self.before_backward: list[Listener] = []
        self.leave_regions: Callable[[], bool] = lambda: False
        self.parallel = False
        self.passes = Passes()
        self.order = threading.RLock()
        self._trained: dict[int, weakref.ref[threading.Thread]] = {}
        self._failed: set[str] = set()

    def on(self) -> bool:
        return not torch.compiler.is_compiling() and self.active

    def forked(self) -> None:
        """In a forked child: what threads hold that are not there is free."""
        self.passes.forget()
        self.order = threading.RLock()

    def mine(self) -> bool:
        """Whether to listen: on the thread that trains, and not while a backward re-runs a forward."""
        mine = self.on() and self.thread == threading.get_ident() and not self.parallel
        return mine and not _in_pass()

    def trains(self) -> None:
        """The calling thread scales, goes backward or steps: from now on it is the one that trains."""
        here, before = threading.get_ident(), self.thread
        if (here == before and self._trained) or _in_pass():
            return  # what steps inside a pass does not train for itself
        thread = threading.current_thread()
        with self.order:
            if here != before and not self.parallel:
                known = self._trained.get(here)
                again = known is not None and known() is thread
                if (again and any(one.ident == before for one in threading.enumerate())) or self.leave_regions():
                    self.lose_order()
            self.thread = here
        self._trained[here] = weakref.ref(thread)  # when it has ended, its number is given to another one

    def lose_order(self) -> None:
        """Several threads train at once."""
        with self.order:
            if not self.parallel:
                self.leave_regions()
                self.parallel = True
        self.host.note("several threads train at once: the order of what they do was not followed from there on")

    def quiet(self, what: str) -> Quiet:
        """What fails in here is said once in the trace and never reaches the program."""
        return Quiet(self, what)

    def failed(self, what: str, error: Exception) -> None:
        """Our own work failed."""
        if what not in self._failed:
            self._failed.add(what)
            self.host.note(f"{what} could not be observed: {type(error).__name__}: {error}")

    def emit(
        self,
        kind: Kind,
        *,
        owners: Iterable[Owner] = (),
        scaler: Any = None,
        optimizer: Any = None,
        place: Place | None = None,
        **fields: Any,
    ) -> EventRow:
        known = tuple(owners)
        row = EventRow(
            kind=kind.value,
            place=place or self.host.places.here(),
            scaler=self.owners.id(scaler)[0] if scaler is not None else None,
            optimizer=self.owners.id(optimizer)[0] if optimizer is not None else None,
            owners=tuple(owner.id for owner in known),
            names=tuple(sorted({owner.name for owner in known if owner.name})),
            **fields,
        )
        with self.order:
            if kind in _BY_TRAINING and self.thread != threading.get_ident() and not _in_pass():
                self.lose_order()  # another one has come to train since the calling thread said that it does
            if not self.parallel:
                self.host.event(row)
        return row

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Take note of an optimizer that was built before ``install``."""
        if not self.owners.id(optimizer)[1]:
            return
        owners = self.owners.link(optimizer)
        for owner in owners:
            owner.holding = not owner.bare()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.emit(Kind.OPTIMIZER_NEW, owners=owners, optimizer=optimizer, dtype=low_dtype(parameters))

    def concerned(self, parameters: Iterable[torch.Tensor]) -> tuple[Owner, ...] | None:
        """The owners of parameters; None when they belong to no optimizer though there are some."""
        owners = self.owners.of_all(parameters)
        return owners if owners or not len(self.owners) else None

    def catch_up(self, owners: Iterable[Owner], *, by_hand: bool = False) -> None:
        """Tell of gradients that came or changed by other means than a backward."""
        strange = [
            owner
            for owner in owners
            if (not owner.holding and not owner.blank and not owner.bare()) or (by_hand and owner.written())
        ]
        if strange:
            self.emit(Kind.GRAD_WRITE, owners=strange)
            for owner in strange:
                owner.holding, owner.scaled = True, None
                owner.look()


class Quiet:
    """A guard around work of our own. A class, for it is entered some thirty times in every step.

    What another thread of the program throws in goes through.
    """

    __slots__ = ("_teller", "_what")

    def __init__(self, teller: Teller, what: str) -> None:
        self._teller = teller
        self._what = what

    def __enter__(self) -> None:
        """Nothing is left to do."""

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if isinstance(error, Exception) and not is_thrown_in(error):
            self._teller.failed(self._what, error)
            return True
        return False


def _in_pass() -> bool:
    """Whether a backward pass calls: it does so in threads of autograd's own, too."""
    return bool(torch._C._current_graph_task_id() != -1)
