"""Numbers in words a person reads: shares as counts allow, steps as ranges."""

from __future__ import annotations

from collections.abc import Sequence


def share(part: int, whole: int) -> str:
    """``part / whole`` in percent; what is not nothing is never shown as 0 %, nor what is not all as 100 %."""
    if whole <= 0:
        return "-"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "<0.1%"
    if 99.9 < percent < 100:
        return ">99.9%"
    return f"{percent:.1f}%"


def ending(text: str, most: int) -> str:
    """The last ``most`` characters of a dotted name, whose end says more than its beginning."""
    return text if len(text) <= most else "..." + text[3 - most :]


def size(count: int) -> str:
    """Bytes in binary units: ``1.5 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def work(flops: int) -> str:
    """Floating point operations in decimal units: ``3.4 GFLOP``."""
    value = float(flops)
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "FLOP" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} PFLOP"


def plural(count: int, noun: str, many: str | None = None) -> str:
    """``1 step``, ``2,048 steps``."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def ranges(numbers: Sequence[int], limit: int = 6) -> str:
    """``1-5, 50, 100``; beyond ``limit`` ranges the rest is counted."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:limit]]
    left = sum(b - a + 1 for a, b in runs[limit:])
    return ", ".join(shown) + (f" and {left:,} more" if left else "")


def scale(value: float) -> str:
    """A loss scale: powers of two in full (``65536``), others in scientific form."""
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.3g}"


def listed(items: Sequence[str], limit: int = 6) -> str:
    """``a, b and 3 more``."""
    if len(items) <= limit:
        return ", ".join(items)
    return f"{', '.join(items[:limit])} and {len(items) - limit:,} more"
