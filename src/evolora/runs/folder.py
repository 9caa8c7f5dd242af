"""The folder of one run: created whole, written by one process, resumable.

NAME/  config.yaml  run.json  result.json  diagnostics.json  journal.jsonl  metrics.parquet  checkpoints/
       adapter/  population/  report.html
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from evolora.errors import ProtocolError, RunError
from evolora.runs import checkpoint
from evolora.runs.atomic import write_atomically
from evolora.runs.config import config_text, differences, read_config
from evolora.runs.contents import (
    Contents,
    make_folders,
    refuse_if_done,
    refuse_unless_free,
    remove_folders,
    remove_old,
)
from evolora.runs.journal import Journal
from evolora.runs.lock import Lock
from evolora.runs.metrics import write_metrics
from evolora.runs.plain import plain

if TYPE_CHECKING:
    from torch import Tensor


class RunFolder(Contents):
    """One run, open for writing by this process alone; made by ``create`` or ``open``.

    As a context manager it lets the lock go at the end, and records an exception that passes through it:
    ``stopped: interrupted`` for KeyboardInterrupt, ``failed: ...`` for any other.

    Attributes:
        path: the folder.
        config: the resolved configuration, as it stands in ``config.yaml``.
        journal: appends to ``journal.jsonl``.
    """

    def __init__(self, path: Path, config: dict[str, Any], record: dict[str, Any], lock: Lock) -> None:
        super().__init__(path)
        self.config = config
        self.journal = Journal(self.journal_path)
        self._record, self._lock = record, lock

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], *, overwrite: bool = False) -> RunFolder:
        """Makes the folder (and its parents) with ``config.yaml`` and ``run.json``, status ``running``.

        Args:
            path: the folder; absent or empty.
            config: the resolved configuration.
            overwrite: replace the run that stands at ``path``. Only what a run consists of is removed.

        Raises:
            ProtocolError: ``config`` holds what YAML cannot.
            RunError: something else stands there, another process writes it, or it cannot be written; nothing
                is left behind.
        """
        contents = Contents(Path(path))
        text = config_text(config)
        refuse_unless_free(contents, overwrite)
        made = make_folders(contents.path)
        mine: list[Path] = []
        lock = None
        try:
            lock = Lock(contents.lock_path)
            refuse_unless_free(contents, overwrite)  # again: another process may have been quicker
            if not contents.record_path.exists():
                mine = [contents.record_path, contents.config_path, contents.lock_path]
            record = {"status": "running", "created": _now(), "resumed": []}
            _write_record(contents, record)
            remove_old(contents)
            write_atomically(contents.config_path, text)
        except BaseException:
            if lock is not None:  # without the lock, what stands there is another process's
                for file in mine:
                    file.unlink(missing_ok=True)
                lock.release()
            remove_folders(made)
            raise
        return cls(contents.path, read_config(contents.config_path), record, lock)

    @classmethod
    def open(
        cls, path: str | Path, config: Mapping[str, Any] | None = None, *, may_change: Collection[str] = ()
    ) -> RunFolder:
        """Opens an unfinished run to go on with it; its status becomes ``running`` again.

        Args:
            path: the folder.
            config: the configuration asked for now; None takes the recorded one.
            may_change: dotted keys that may differ (``budget`` covers ``budget.steps``); new values are kept.

        Raises:
            RunError: it is no run folder, another process writes it, it is done, or ``config`` differs in a
                key that changes the result (the message names it).
        """
        contents = Contents(Path(path))
        contents.record()
        lock = Lock(contents.lock_path)
        try:
            record = contents.record()
            refuse_if_done(contents)
            recorded = read_config(contents.config_path)
            if config is not None:
                changed = differences(recorded, config, may_change)
                if changed:
                    raise RunError(
                        f"this run was started with other options: {'; '.join(changed[:3])}"
                        + (f"; and {len(changed) - 3} more" if len(changed) > 3 else ""),
                        where=path,
                        mend="resume with the old values, or choose another --out",
                    )
                if differences(recorded, config):
                    write_atomically(contents.config_path, config_text(config))
                    recorded = read_config(contents.config_path)
            record = {**record, "status": "running", "resumed": [*record.get("resumed", []), _now()]}
            _write_record(contents, record)
        except BaseException:
            lock.release()
            raise
        return cls(contents.path, recorded, record, lock)

    @property
    def status(self) -> str:
        """``running``, ``done``, ``stopped: REASON`` or ``failed: ERROR``."""
        return str(self._record["status"])

    def record(self, **fields: Any) -> dict[str, Any]:
        """Adds or replaces fields of ``run.json`` (atomically, on the disk on return); gives all of them.

        Raises:
            ProtocolError: ``status`` among the fields, or a value that JSON cannot hold.
            RunError: it cannot be written.
        """
        if "status" in fields:
            raise ProtocolError("the status is set by finish(), stop() and fail()", where="RunFolder.record")
        return self._update(fields)

    def finish(self) -> None:
        """Running becomes done: the run has its result and can no longer be resumed."""
        self._end("done")

    def stop(self, reason: str) -> None:
        """Running becomes stopped: it can be resumed."""
        self._end(f"stopped: {_line(reason)}")

    def fail(self, error: BaseException | str) -> None:
        """Running becomes failed: it can be resumed once the cause is mended."""
        self._end(f"failed: {_line(str(error)) or type(error).__name__}")

    def save_result(self, result: Mapping[str, Any]) -> Path:
        """Writes ``result.json`` atomically; NaN and the infinities become null."""
        return write_atomically(self.result_path, _json(result))

    def save_diagnostics(self, found: Mapping[str, Any]) -> Path:
        """Writes ``diagnostics.json`` as ``save_result`` does its file."""
        return write_atomically(self.diagnostics_path, _json(found))

    def save_metrics(self) -> Path:
        """Writes the journal as ``metrics.parquet``."""
        return write_metrics(self.journal.read(), self.metrics_path)

    def save_checkpoint(self, step: int, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> Path:
        """Writes the state after ``step`` steps; see ``checkpoint.save``."""
        return checkpoint.save(self.checkpoints_path, step, tensors, numbers)

    def resume(self) -> checkpoint.Checkpoint | None:
        """The newest good checkpoint, the journal cut back to it; None (and an empty journal) without one."""
        found = checkpoint.latest(self.checkpoints_path)
        self.journal.truncate_after(-1 if found is None else found.step)
        return found

    def close(self) -> None:
        """Closes the journal and lets the lock go; a run that nobody ended is ``stopped``."""
        try:
            if self.status == "running":
                self.stop("closed before its end")
        finally:
            self.journal.close()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return self.close()
        with suppress(RunError):  # a full disk must not hide the error that is on its way
            if self.status == "running":
                if isinstance(error, KeyboardInterrupt):
                    self.stop("interrupted")
                else:
                    self.fail(error)
        with suppress(RunError):
            self.close()
        return None

    def _end(self, status: str) -> None:
        if self.status != "running":
            raise ProtocolError(f"a run that is {self.status!r} cannot become {status!r}", where=self.path)
        self._update({"status": status, "ended": _now()})

    def _update(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        record = {**self._record, **plain(fields, where="run.json")}
        _write_record(self, record)
        self._record = record
        return dict(record)


def _write_record(contents: Contents, record: Mapping[str, Any]) -> None:
    write_atomically(contents.record_path, _json(record))


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
