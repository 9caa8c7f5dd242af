"""Which training prompts a step uses: epochs of keyed permutations, a pure function of the step."""

from __future__ import annotations

from math import gcd

from evolora.adapters.noise import permutation
from evolora.errors import ProtocolError


def batch(count: int, size: int, step: int, seed: int) -> list[int]:
    """The prompts of a step: ``size`` indices below ``count``.

    Batches follow each other through the epochs; every epoch holds every prompt once. A batch that
    straddles two epochs has no prompt twice: those of its first part are moved behind its second in the new
    epoch. Only where ``size > count`` must prompts repeat, and then as evenly as they can.

    Args:
        count: training prompts there are.
        size: prompts a step.
        step: 0, 1, 2, ...
        seed: of the permutations.

    Raises:
        ProtocolError: a count or size below one, or a negative step.
    """
    if count < 1 or size < 1 or step < 0:
        raise ProtocolError(f"no batch of {size} from {count} prompts at step {step}")
    start, stop = step * size, (step + 1) * size
    first, last = start // count, (stop - 1) // count
    # an epoch depends on the one before only if a batch straddles both; every so many epochs none does
    period = size // gcd(count, size) if size <= count else 1
    order: list[int] = []
    chosen: list[int] = []
    for epoch in range(first - first % period, last + 1):
        before = order
        order = permutation(count, seed=seed, step=epoch, purpose="minibatch").tolist()
        completing = -epoch * count % size
        if completing and size <= count:
            carried = set(before[completing - size :])
            head = [i for i in order if i not in carried][:completing]
            order = head + [i for i in order if i not in set(head)]
        base = epoch * count
        chosen += order[max(0, start - base) : max(0, stop - base)]
    return chosen
