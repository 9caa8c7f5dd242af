"""The state of a search: plain tensors and numbers. Saving it is saving the run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from evolora.adapters import ModuleSpec
from evolora.errors import ProtocolError, RunError

if TYPE_CHECKING:
    from torch import Tensor

Number = int | float
_OWN = "method/"


class Turn:
    """Whose turn it is on one state: the only thing about a state that changes, and no part of its value."""

    def __init__(self, asked: bool = False) -> None:
        self.asked = asked
        self.told = False


@dataclass(frozen=True, eq=False)
class State:
    """Where a search stands. A step makes a new state; a state that is held on to stays what it was.

    Attributes:
        template: the shapes of the adapted modules.
        seed: with ``step`` the address of all the search's noise.
        step: how many steps are done.
        progress: the fraction of the budget spent before this step, 0 to 1. Both the perturbation that
            ``ask`` makes and the step size that ``tell`` takes follow from it, so that they agree, and so
            that a resumed run continues bit for bit.
        tensors: the method's tensors, by name.
        numbers: the method's numbers, by name.
        turn: whether a population was asked for, and whether it was told.
    """

    template: Mapping[str, ModuleSpec]
    seed: int
    step: int = 0
    progress: float = 0.0
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, Number] = field(default_factory=dict)
    turn: Turn = field(default_factory=Turn, repr=False)

    def __post_init__(self) -> None:
        for name in ("template", "tensors", "numbers"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def asked(self) -> bool:
        """Whether a population was asked for and is not yet told."""
        return self.turn.asked

    def tensor(self, name: str) -> Tensor:
        """The tensor of this name.

        Raises:
            ProtocolError: there is none: the state was made by another method, or by other options.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise ProtocolError(
                f"the state holds no tensor {name!r}", mend="use the method that made it"
            ) from None

    def after(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Number], progress: float) -> State:
        """The state one step later."""
        return State(self.template, self.seed, self.step + 1, progress, tensors, numbers)


def to_checkpoint(state: State) -> tuple[dict[str, Tensor], dict[str, Number]]:
    """The state as contiguous tensors and JSON numbers, for ``runs.checkpoint``."""
    numbers: dict[str, Number] = {
        "seed": state.seed,
        "step": state.step,
        "progress": state.progress,
        "asked": int(state.asked),
        "template": _fingerprint(state.template),
    }
    numbers |= {_OWN + name: value for name, value in state.numbers.items()}
    return {name: tensor.contiguous() for name, tensor in state.tensors.items()}, numbers


def from_checkpoint(
    template: Mapping[str, ModuleSpec], tensors: Mapping[str, Tensor], numbers: Mapping[str, Number]
) -> State:
    """The state that ``to_checkpoint`` took apart, bit for bit.

    Args:
        template: the shapes of the adapted modules; must be those of the saved run.
        tensors: the checkpoint's tensors.
        numbers: the checkpoint's numbers.

    Raises:
        RunError: a number is missing, or the run adapted other modules.
    """
    missing = [name for name in ("seed", "step", "progress", "asked", "template") if name not in numbers]
    if missing:
        raise RunError(f"the checkpoint holds no {missing[0]}", mend="it was not written by a search")
    if numbers["template"] != _fingerprint(template):
        raise RunError(
            "the checkpoint was made for other modules",
            mend="resume with the model, targets and layers of the run",
        )
    own = {name.removeprefix(_OWN): value for name, value in numbers.items() if name.startswith(_OWN)}
    return State(
        template,
        int(numbers["seed"]),
        int(numbers["step"]),
        float(numbers["progress"]),
        tensors,
        own,
        Turn(bool(numbers["asked"])),
    )


def _fingerprint(template: Mapping[str, ModuleSpec]) -> int:
    text = ";".join(f"{name}:{spec.d_out}x{spec.d_in}:{spec.kind}" for name, spec in sorted(template.items()))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "little")
