"""From texts to rectangles of token ids, and how members x prompts are cut into forwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.adapters import DENSE, ModuleSpec
from evolora.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_FACTOR_NUMBERS = 96_000_000  # float32 numbers of factors held for one block of members (384 MB)


@dataclass(frozen=True)
class Sequences:
    """Prompts followed by answers, padded on the right (a causal model never looks there).

    Attributes:
        ids: ``[P, T]``; the last answer token is not an input.
        positions: for each answer token, the flat index ``row * T + column`` of the position that predicts
            it.
        targets: the answer tokens, end-of-text included, row by row.
        lengths: ``[P]``, answer tokens of each row.
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor
    lengths: Tensor


def join(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int) -> Sequences:
    """Builds the rectangle for teacher-forced scoring from prompts with answers."""
    import torch

    width = max(len(prompt) + len(answer) for prompt, answer in pairs) - 1
    ids = torch.full((len(pairs), width), pad, dtype=torch.long)
    positions: list[int] = []
    targets: list[int] = []
    for row, (prompt, answer) in enumerate(pairs):
        whole = [*prompt, *answer]
        ids[row, : len(whole) - 1] = torch.tensor(whole[:-1])
        first = row * width + len(prompt) - 1
        positions.extend(range(first, first + len(answer)))
        targets.extend(answer)
    lengths = torch.tensor([len(answer) for _, answer in pairs])
    return Sequences(ids, torch.tensor(positions), torch.tensor(targets), lengths)


def pad_left(prompts: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """``ids [P, T]`` and ``mask [P, T]``, padded on the left for decoding."""
    import torch

    width = max(len(p) for p in prompts)
    ids = torch.full((len(prompts), width), pad, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids, mask


def refuse_unusable(prompts: Sequence[Sequence[int]], after: Sequence[int], limit: int | None) -> None:
    """Raises InputError for a prompt that the model cannot take.

    Args:
        prompts: token ids.
        after: for each prompt how many tokens will follow.
        limit: the most tokens that the model knows positions for, if it has such a limit.

    Raises:
        InputError: a prompt without a token (nothing could predict what follows), or too long a row.
    """
    for index, (prompt, more) in enumerate(zip(prompts, after, strict=True)):
        if not prompt:
            raise InputError(
                "the prompt is empty", where=f"prompt {index}", mend="give it at least one character"
            )
        if limit is not None and len(prompt) + more > limit:
            raise InputError(
                f"{len(prompt)} tokens and {more} to follow exceed max_position_embeddings = {limit}",
                where=f"prompt {index}",
                mend="shorten it",
            )


@dataclass(frozen=True)
class Plan:
    """How one call is cut: ``members`` and ``prompts`` of one forward."""

    members: int
    prompts: int

    def blocks(self, count: int) -> Iterator[range]:
        """Consecutive members, block by block."""
        return (range(i, min(i + self.members, count)) for i in range(0, count, self.members))


def plan(
    members: int,
    prompts: int,
    width: int,
    *,
    max_tokens: int,
    specs: Mapping[str, ModuleSpec],
    ranks: Mapping[str, int],
    group: int = 1,
    shares_prefix: bool = False,
) -> Plan:
    """Chooses the cut: a pure function of its arguments, so that a resumed run cuts alike.

    One forward holds at most ``max_tokens`` tokens in the adapted layers. Where layers below are shared by
    all members, many members of few prompts stand together; otherwise few members of many prompts do (larger
    products).
    """
    numbers = sum(_numbers(spec, ranks[name]) for name, spec in specs.items()) // group
    rows = max(1, max_tokens // max(1, width))
    most = min(members, _FACTOR_NUMBERS // max(1, numbers), rows if shares_prefix else rows // prompts)
    blocks = -(-members // max(most, group))
    block = -(-members // blocks)
    block = min(members, block + -block % group)
    return Plan(block, min(prompts, max(1, rows // block)))


def _numbers(spec: ModuleSpec, rank: int) -> int:
    return spec.d_in * spec.d_out if rank == DENSE else rank * (spec.d_in + spec.d_out)
