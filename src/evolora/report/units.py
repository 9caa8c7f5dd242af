"""Numbers as a reader wants them: percent, points, FLOPs, bytes, durations."""

from __future__ import annotations

from typing import Any, TypeGuard

NOTHING = "–"  # noqa: RUF001 (an en dash stands for "no value" in every table)
_PREFIXES = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"]


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it is an int or a finite float (a bool is not)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def number(value: Any, digits: int = 4) -> str:
    """``0.1235``, ``12,345``, ``1.2e-07``: that many significant digits; integers and thousands whole."""
    if not is_number(value):
        return NOTHING
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return _minus(f"{int(value):,}")
    return _minus(f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.{digits}g}")


def percent(share: float) -> str:
    """0.413 as ``41.3 %``."""
    return _minus(f"{100 * share:.1f} %")


def counts_right(reward: str) -> bool:
    """Whether mean rewards of this kind are shares of right answers; else they are numbers of any range."""
    return reward.partition(":")[0] in ("exact", "numeric", "contains", "regex")


def signed(value: float, digits: int = 1) -> str:
    """With its sign and that many decimals: ``+34.0``."""
    return _minus(f"{value:+.{digits}f}")


def decimals(value: float, digits: int = 1) -> str:
    """With that many decimals: ``26.0``."""
    return _minus(f"{value:.{digits}f}")


def si(value: float) -> tuple[float, str]:
    """The value in thousands, millions ..., and the prefix: 3.2e14 is (320.0, "T")."""
    power = 0
    while abs(value) >= 1000 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return value, _PREFIXES[power]


def flops(value: Any) -> str:
    """``321 TFLOP``."""
    if not is_number(value):
        return NOTHING
    scaled, prefix = si(float(value))
    return f"{scaled:.3g} {prefix}FLOP" if abs(scaled) < 999.5 else f"{scaled:.0f} {prefix}FLOP"


def size(count: Any) -> str:
    """Bytes in binary units: ``62.8 GiB``."""
    if not is_number(count):
        return NOTHING
    value, power = float(count), 0
    while value >= 1024 and power < 6:
        value, power = value / 1024, power + 1
    return f"{value:.3g} {['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'][power]}"


def duration(seconds: Any) -> str:
    """``12.3 s``, ``4 min 12 s``, ``3 h 5 min``."""
    if not is_number(seconds):
        return NOTHING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def told(key: str, value: Any) -> str:
    """A value as its key wants it: work, time, bytes, a number, yes or no, text."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("flops"):
        return flops(value)
    if key == "seconds":
        return duration(value)
    if key.endswith("bytes"):
        return size(value)
    if key == "seed" and isinstance(value, int):
        return str(value)
    return number(value) if isinstance(value, int | float) else str(value)


def words(key: str) -> str:
    """``forward_flops`` as ``forward FLOPs``."""
    return key.replace("_", " ").replace("flops", "FLOPs")


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}") if "e" not in text else text
