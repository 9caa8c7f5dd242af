import pytest

from evolora.report import units


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: units.number(12345), "12,345"),
        (lambda: units.number(0.123456), "0.1235"),
        (lambda: units.number(12345.6), "12,346"),
        (lambda: units.number(1.5e12), "1,500,000,000,000"),
        (lambda: units.number(123456789012.5), "1.235e+11"),
        (lambda: units.told("forward_flops", 2e12), "2 TFLOP"),
        (lambda: units.told("changed", False), "no"),
        (lambda: units.told("", None), "–"),  # noqa: RUF001
        (lambda: units.number(-3.0), "−3"),  # noqa: RUF001
        (lambda: units.number(1.2e-7), "1.2e-07"),
        (lambda: units.number(None), "–"),  # noqa: RUF001
        (lambda: units.number(float("nan")), "–"),  # noqa: RUF001
        (lambda: units.percent(0.413), "41.3 %"),
        (lambda: units.signed(34.0), "+34.0"),
        (lambda: units.signed(-3.14), "−3.1"),  # noqa: RUF001
        (lambda: units.flops(0), "0 FLOP"),
        (lambda: units.flops(98_123_456_789_012), "98.1 TFLOP"),
        (lambda: units.flops(999_600), "1000 kFLOP"),
        (lambda: units.flops(3e30), "3000000 YFLOP"),
        (lambda: units.size(16_500_000_000), "15.4 GiB"),
        (lambda: units.size(12), "12 B"),
        (lambda: units.duration(3.14), "3.1 s"),
        (lambda: units.duration(59.96), "1 min 0 s"),
        (lambda: units.duration(252.4), "4 min 12 s"),
        (lambda: units.duration(3600 * 30 + 61), "30 h 1 min"),
    ],
)
def test_numbers_read_well(call, text):
    assert call() == text


def test_a_bool_or_an_infinity_is_no_number():
    assert not any(units.is_number(value) for value in (True, float("inf"), float("nan"), "1", None))
