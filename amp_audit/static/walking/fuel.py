"""How much of a project is walked: fuel is counted in statements, each as often as it is walked."""

from __future__ import annotations

FUEL = 10_000
"""Statements walked for one entry at one width."""

NARROW, PLENTY = 16, 4
"""Where an entry never has more paths than this, it is its code that is long: it may have this many times the fuel."""

SHARE = 4
"""The part of the fuel left that one entry may have beyond the usual: one fourth, so that further ones find some."""

EVENT = 2
"""What an event of training costs beside its statement: the rules are held against each (measured)."""

PROJECT_FUEL = 300_000
"""Statements walked for all entries of a project: about twenty seconds."""

SCALER_FUEL = 8_000
"""What each module that speaks of a GradScaler adds: a collection of training programs is one project, too."""

LEAST_FUEL = 400
"""Statements that an entry gets even where the project has none left."""


class OutOfFuel(Exception):
    """The paths of one entry are too many to walk; what was found so far stands."""
