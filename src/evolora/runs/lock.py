"""One writer a run: an advisory lock that the kernel lets go when its process dies."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path

from evolora.errors import RunError
from evolora.runs.atomic import cannot_write

_NO_LOCKS_HERE = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


class Lock:
    """Holds ``flock`` on a file from construction to ``release`` (or the death of the process).

    The file stays when the lock is released: removing it would let two processes lock two files of one name.
    What decides is the kernel's lock, never the file, so the file of a dead process is simply taken over.

    Args:
        path: the lock file; made when absent. It holds the writer's process id, for the message.

    Raises:
        RunError: another process (or another ``Lock`` of this one) holds it, or the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            self._take(self._handle)
        except BaseException:
            self.release()
            raise

    def _take(self, handle: int) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: the one-writer rule is then the user's
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 32).decode("ascii", "replace").strip()
            raise RunError(
                f"another process{f' (pid {owner})' if owner else ''} is writing this run",
                where=self.path.parent,
                mend="wait until it ends, or choose another --out",
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise cannot_write(self.path, error) from error
            warnings.warn(
                f"{self.path}: this file system has no locks; start one process a run", stacklevel=4
            )
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Lets the lock go; a second call does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
