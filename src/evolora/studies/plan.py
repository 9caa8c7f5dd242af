"""The plan of a study: all that is decided before a cell is run, and its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evolora.errors import ConfigError, ProtocolError
from evolora.stats import fewest_pairs
from evolora.studies.study import Arm, Preset, Settings, Study


@dataclass(frozen=True)
class Plan:
    """What will be run and how it will be judged.

    Attributes:
        study: its name.
        revision: of the study.
        preset: its name.
        claims: as stated.
        arms: by name.
        seeds: reported.
        tuning: chosen on.
        settings: every cell is told.
        inputs: name of each data file that was given to its SHA-256.
    """

    study: str
    revision: int
    preset: str
    claims: tuple[Mapping[str, str], ...]
    arms: Mapping[str, Arm]
    seeds: tuple[int, ...]
    tuning: tuple[int, ...]
    settings: Settings
    inputs: Mapping[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The plan as plain data, its ``digest`` among it."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {**plain, "digest": digest(plain)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the reader of a verdict must know beforehand."""
        least = fewest_pairs(0.05)
        if len(self.seeds) >= least:
            return ()
        return (f"{len(self.seeds)} paired seeds can never reach p = 0.05: that takes {least}",)


def make_plan(study: Study, preset: str, data: Mapping[str, Path] | None = None) -> Plan:
    """Lays down what a preset of a study will run.

    Args:
        study: what is run.
        preset: how large.
        data: name to path of the user's files.

    Raises:
        ConfigError: there is no such preset, or a file that the study does not take or that is not there.
        ProtocolError: the study chooses and reports on the same seeds, or tunes its arms unequally.
    """
    if preset not in study.presets:
        known = ", ".join(study.presets)
        raise ConfigError(f"no preset {preset!r}", where=study.name, mend=f"choose {known}")
    sizes: Preset = study.presets[preset]
    arms = dict(study.arms(sizes.settings))
    if shared := set(sizes.seeds) & set(sizes.tuning):
        raise ProtocolError(f"seed {min(shared)} is both chosen on and reported", where=study.name)
    tuned = {len(arm.grid) for arm in arms.values() if arm.grid}
    if len(tuned) > 1:
        raise ProtocolError(f"arms are tuned on grids of {sorted(tuned)} settings", where=study.name)
    if tuned and not sizes.tuning:
        raise ProtocolError("arms are to be tuned, but there is no seed to tune on", where=study.name)
    claims = tuple(asdict(claim) for claim in study.claims)
    return Plan(
        study.name,
        study.revision,
        preset,
        claims,
        arms,
        sizes.seeds,
        sizes.tuning,
        dict(sizes.settings),
        {name: _hash_of(study, name, Path(path)) for name, path in (data or {}).items()},
    )


def _hash_of(study: Study, name: str, path: Path) -> str:
    if name not in study.data:
        taken = ", ".join(study.data) or "none"
        raise ConfigError(f"takes no data named {name!r}", where=study.name, mend=f"it takes {taken}")
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot be read ({reason})", where=path, mend=f"it is {study.data[name]}"
        ) from None


def digest(value: Any) -> str:
    """Sixteen hex digits of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
