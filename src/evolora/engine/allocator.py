"""The C library's allocator, told to keep freed memory.

A forward pass frees and takes the same gigabytes over and over. By default glibc hands the free end of its
heap back to the system, and every page of the next activations is faulted in and cleared again: measured, up
to a quarter of a forward pass on a CPU.
"""

from __future__ import annotations

import os
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_... of malloc.h
_KEPT = 1 << 30
_OLD_LIMIT = 1 << 25  # the largest mmap threshold that older versions accept


@cache
def keep_freed_memory() -> bool:
    """Lets this process keep up to 1 GiB of freed memory for its next use; does so once.

    Nothing is done on other systems than Linux with glibc, or where the user has tuned malloc through the
    environment.

    Returns:
        Whether the allocator took the setting.
    """
    tuned = os.environ.get("GLIBC_TUNABLES", "") + "".join(
        name for name in os.environ if name.startswith("MALLOC_")
    )
    if sys.platform != "linux" or "malloc" in tuned.lower():
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # one of the two alone would switch off the automatic choice of the other
    return any(mallopt(_MMAP_THRESHOLD, size) for size in (_KEPT, _OLD_LIMIT)) and bool(
        mallopt(_TRIM_THRESHOLD, _KEPT)
    )
