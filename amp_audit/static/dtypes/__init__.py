"""Which dtype a tensor has where, and the rules that ask for it.

The program is run abstractly: ``values`` are what expressions can be, ``surface`` is what torch's functions do to
dtypes, ``walk`` goes through the code, ``record`` is what it met there, ``rules`` holds the rules' ``op`` detectors
against that.
"""

from amp_audit.static.dtypes.rules import find

__all__ = ["find"]
