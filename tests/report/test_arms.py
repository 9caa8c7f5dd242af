"""Colours of arms by published measures: contrast (WCAG 2), colour blindness (Machado 2009), OKLab."""

import re
from importlib import resources

import numpy as np
import pytest

from evolora.report.arms import COLORS, look_of

SEEN = {
    "all cones": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colors):
    values = np.array([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in colors])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def palette(scheme):
    css = resources.files("evolora.report").joinpath("templates", "page.css").read_text()
    light, dark = css.split("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--(\w+): (#\w{6})", dark if scheme == "dark" else light))
    return [found[f"arm{i}"] for i in range(COLORS)], found["paper"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_stands_out_from_the_paper(scheme):
    colors, paper = palette(scheme)
    weights = np.array([0.2126, 0.7152, 0.0722])
    drawn, ground = linear(colors) @ weights + 0.05, linear([paper]) @ weights + 0.05
    assert (np.maximum(drawn, ground) / np.minimum(drawn, ground)).min() >= 2.99


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_two_colours_look_alike_to_anyone(scheme, eyes):
    seen = np.clip(linear(palette(scheme)[0]) @ np.array(SEEN[eyes]).T, 0, 1)
    lab = np.cbrt(seen @ CONES.T) @ LAB.T
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=-1)
    assert apart[np.triu_indices(COLORS, 1)].min() > 0.07  # black and white are 1 apart


def test_thirty_arms_look_different():
    looks = [look_of(i) for i in range(30)]
    assert len({(look.color, look.dash) for look in looks}) == 30
    assert len({look.symbol for look in looks[:10]}) == 10
