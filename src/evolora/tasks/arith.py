"""The family ``arith``: sums, differences and products of whole numbers. The size counts the digits of both.

Size 4 is two digits and two digits, size 3 two digits and one. Numbers have no leading zeros (one digit: 0 to
9), and differences are never negative.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

from evolora.tasks.procedural import Subtask


def _numbers(digits: int) -> range:
    return range(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def _pair(size: int, number: int) -> tuple[int, int]:
    first, second = _numbers((size + 1) // 2), _numbers(size // 2)
    return first[number // len(second)], second[number % len(second)]


def _pairs(size: int) -> int:
    return len(_numbers((size + 1) // 2)) * len(_numbers(size // 2))


def _falling(size: int, number: int) -> tuple[int, int]:
    """Pairs whose second number is not above the first: rows of a triangle where both have as many digits."""
    if size % 2:
        return _pair(size, number)
    row = (isqrt(8 * number + 1) - 1) // 2
    numbers = _numbers(size // 2)
    return numbers[row], numbers[number - row * (row + 1) // 2]


def _fallings(size: int) -> int:
    count = len(_numbers(size // 2))
    return _pairs(size) if size % 2 else count * (count + 1) // 2


def _subtask(
    name: str,
    description: str,
    size: int,
    rule: Callable[[int, int], int],
    space: Callable[[int], int] = _pairs,
    pair: Callable[[int, int], tuple[int, int]] = _pair,
) -> Subtask:
    def case(size: int, number: int) -> tuple[str, str]:
        a, b = pair(size, number)
        return f"{a} {b}", str(rule(a, b))

    return Subtask("arith", name, description, range(2, 9), size, space, case)


ARITH = (
    _subtask("add", "sums: add: 12 7 -> 19", 4, lambda a, b: a + b),
    _subtask("sub", "differences: sub: 82 42 -> 40", 4, lambda a, b: a - b, _fallings, _falling),
    _subtask("mul", "products: mul: 12 7 -> 84", 3, lambda a, b: a * b),
)
