"""Repairs of what was found: built from the facts of a module, applied to its text."""
