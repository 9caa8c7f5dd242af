"""Several tests at once: Holm's step-down correction (Holm 1979), which holds however they depend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evolora.errors import ProtocolError


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given: reject those at or below the level.

    The i-th smallest of m is multiplied by ``m - i + 1``, and none is below a smaller one's.

    Raises:
        ProtocolError: a value outside 0 to 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ProtocolError("p-values must lie between 0 and 1")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * (p.size - np.arange(p.size))), 1)
    return [float(value) for value in adjusted]
