"""What the page of a run is made from, read from its folder; whatever is not there yet is simply absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolora.errors import RunError
from evolora.runs.config import read_config
from evolora.runs.contents import Contents
from evolora.runs.journal import Journal


@dataclass(frozen=True)
class RunData:
    """The contents of a run folder, for reading.

    Attributes:
        contents: the paths.
        record: ``run.json``; it has a ``status``.
        config: ``config.yaml`` parsed; empty when it is missing or damaged.
        config_text: ``config.yaml`` as it stands.
        journal: one entry a step.
        result: ``result.json``; None before the run has one.
        adapter: ``adapter_config.json`` of the adapter; None before there is an adapter.
        diagnostics: ``diagnostics.json``, else what the result says of them; None where there are none.
    """

    contents: Contents
    record: Mapping[str, Any]
    config: Mapping[str, Any]
    config_text: str
    journal: list[dict[str, Any]]
    result: Mapping[str, Any] | None
    adapter: Mapping[str, Any] | None
    diagnostics: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.contents.path.resolve().name

    def find(self, *keys: str) -> Any:
        """The first value that is not None under one of the keys: in the result, the record, the config."""
        for source in (self.result or {}, self.record, self.config):
            for key in keys:
                if source.get(key) is not None:
                    return source[key]
        return None

    @property
    def ledger(self) -> Mapping[str, Any]:
        """What was spent: the result's ledger, else the record's, else the last line of the journal."""
        found = self.find("ledger")
        if isinstance(found, Mapping) and found:
            return found
        last = self.journal[-1] if self.journal else {}
        keys = ("forward_flops", "evaluations", "seconds")
        return {key: last[key] for key in keys if last.get(key) is not None}

    @property
    def planned_steps(self) -> int | None:
        """How many steps the budget allows, where the configuration says so."""
        budget = self.config.get("budget")
        steps = budget.get("steps") if isinstance(budget, Mapping) else self.config.get("budget_steps")
        return steps if isinstance(steps, int) else None


def read_run(path: str | Path) -> RunData:
    """Reads a run folder, finished or not.

    Raises:
        RunError: it is no run folder, or its ``run.json``, ``result.json`` or journal is damaged.
    """
    contents = Contents(Path(path))
    record = contents.record()
    try:
        text = contents.config_path.read_text(encoding="utf-8", errors="replace")
        config = read_config(contents.config_path)
    except FileNotFoundError:
        text, config = "", {}
    except RunError:
        config = {}
    result = _read_object(contents.result_path)
    told = (result or {}).get("diagnostics")
    return RunData(
        contents=contents,
        record=record,
        config=config,
        config_text=text,
        journal=Journal(contents.journal_path).read(),
        result=result,
        adapter=_read_object(contents.adapter_path / "adapter_config.json"),
        diagnostics=_read_object(contents.diagnostics_path) or (told if isinstance(told, dict) else None),
    )


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"cannot be read ({error})", where=path) from error
    if not isinstance(found, dict):
        raise RunError("holds no JSON object", where=path)
    return found
