"""Run a piece of Python on the emulated device, in a process of its own: what is emulated stays for its life."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.runtime.drive import ENVIRONMENT

HEAD = """
import json, sys
import torch
from torch import nn
from torch.nn import functional as F
from amp_audit.runtime import emulation
torch.set_num_threads(1)
emulation.begin({device!r})
results = []
def tell(*values):
    results.append([value if isinstance(value, (int, float, str, bool, list, type(None))) else str(value)
                    for value in values])
def refused(function):
    try:
        function()
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}".splitlines()[0]
    return "nothing was raised"
"""


def emulate(
    code: str, device: str = "cuda", folder: Path | None = None, environment: dict[str, str] | None = None
) -> list[list[Any]]:
    """What ``code`` handed to ``tell``, call by call. Fails where the program does not end well."""
    text = HEAD.format(device=device) + textwrap.dedent(code) + "\nprint('RESULTS' + json.dumps(results))\n"
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**ENVIRONMENT, **(environment or {})},
        cwd=folder,
        capture_output=True,
        timeout=300,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: list[list[Any]] = json.loads(done.stdout.rpartition("RESULTS")[2])
    return told
