"""An adapter: low-rank factors on named modules of a frozen base, immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from evolora.errors import AdapterError

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.adapters.preflight import SpecChecker

Kind = Literal["linear", "embedding"]


@dataclass(frozen=True)
class ModuleSpec:
    """The shape of one adaptable module, as a map from ``d_in`` to ``d_out``.

    A Conv1D of GPT-2 counts as ``linear``. An embedding of V tokens has ``d_in = V``.
    """

    d_out: int
    d_in: int
    kind: Kind = "linear"


@dataclass(frozen=True, eq=False)
class Factors:
    """One module's low-rank delta: ``delta W = scale * b @ a`` of shape ``[d_out, d_in]``.

    Attributes:
        a: ``[r, d_in]``, float32.
        b: ``[d_out, r]``, float32.
        scale: multiplies the product (alpha / r, or alpha / sqrt(r) under rslora).
        magnitude: ``[d_out]``, DoRA's m (arXiv 2402.09353): the module then computes
            ``m * (W + delta) / ||W + delta||`` with one norm per output channel. None for plain LoRA.
        kind: ``linear`` (also Conv1D) or ``embedding``.
    """

    a: Tensor
    b: Tensor
    scale: float = 1.0
    magnitude: Tensor | None = None
    kind: Kind = "linear"

    def __post_init__(self) -> None:
        if self.a.ndim != 2 or self.b.ndim != 2 or self.a.shape[0] != self.b.shape[1]:
            raise AdapterError(
                f"factors of shapes {tuple(self.b.shape)} and {tuple(self.a.shape)} do not multiply"
            )
        if self.magnitude is not None and self.magnitude.shape != (self.b.shape[0],):
            raise AdapterError(
                f"a magnitude of shape {tuple(self.magnitude.shape)} does not fit {self.b.shape[0]} outputs"
            )

    @property
    def rank(self) -> int:
        """The number of rows of ``a``."""
        return self.a.shape[0]

    @property
    def spec(self) -> ModuleSpec:
        """The shape of the module that these factors fit."""
        return ModuleSpec(self.b.shape[0], self.a.shape[1], self.kind)

    def delta(self) -> Tensor:
        """The dense ``[d_out, d_in]`` delta (for tests and small modules; nothing fast needs it)."""
        return self.scale * (self.b @ self.a)


@dataclass(frozen=True, eq=False)
class Adapter:
    """One set of low-rank factors on named modules; equals a PEFT folder on disk.

    Attributes:
        modules: module path in the base (``model.layers.0.self_attn.q_proj``) to its factors.
        base: the base's name as the adapter's config records it, if known.
        name: a short name for tables.
        provenance: how it was made: method, seed, parents, base fingerprint, version.
    """

    modules: Mapping[str, Factors]
    base: str | None = None
    name: str = "adapter"
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "modules", MappingProxyType(dict(self.modules)))
        object.__setattr__(self, "provenance", MappingProxyType(dict(self.provenance)))

    def __repr__(self) -> str:
        return f"Adapter({self.name!r}, {len(self.modules)} modules, rank {self.rank}, base {self.base!r})"

    @property
    def specs(self) -> dict[str, ModuleSpec]:
        """The shapes of the adapted modules."""
        return {name: factors.spec for name, factors in self.modules.items()}

    @property
    def rank(self) -> int:
        """The largest rank of any module."""
        return max((factors.rank for factors in self.modules.values()), default=0)

    @property
    def parameters(self) -> int:
        """How many numbers the factors and magnitudes hold."""
        return sum(
            f.a.numel() + f.b.numel() + (0 if f.magnitude is None else f.magnitude.numel())
            for f in self.modules.values()
        )

    @classmethod
    def load(cls, path: str | Path, base: SpecChecker | None = None) -> Adapter:
        """Reads a PEFT folder (LoRA or DoRA) after a header-only preflight.

        Args:
            path: the folder.
            base: the model it is meant for, to check the adapter against. Only with it can a copy of a base
                weight that the folder holds be compared to the base's.

        Raises:
            AdapterError: the folder is damaged, uses a property that is not supported exactly, or does not
                fit the base.
        """
        from evolora.adapters.peft_files import read_adapter

        return read_adapter(path, base)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Writes a canonical PEFT folder (alpha = r, no rslora, explicit targets); returns its path.

        Raises:
            AdapterError: something stands at ``path`` and ``overwrite`` is False, or it cannot be written.
        """
        from evolora.adapters.peft_files import write_adapter

        return write_adapter(self, path, overwrite=overwrite)
