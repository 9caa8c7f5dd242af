"""A study that costs nothing: which of two guesses lies nearer to a number that each seed draws."""

import os
import random
from pathlib import Path
from typing import ClassVar

from evolora.studies import Arm, Claim, Finding, Preset, Study


class Toy(Study):
    name = "toy"
    summary = "two guesses at a number"
    source = "none"
    claims = (Claim("near", "the tuned guess is nearer", "its mean distance is not smaller"),)
    presets: ClassVar = {
        "smoke": Preset(seeds=(10, 11, 12, 13, 14, 15), tuning=(0, 1), settings={"at": 3.0}),
        "few": Preset(seeds=(10, 11), tuning=(0,), settings={"at": 3.0}),
    }

    def arms(self, settings):
        grid = tuple({"guess": guess} for guess in (0.0, 2.5, 9.0))
        return {"tuned": Arm({"kind": "tuned"}, grid), "fixed": Arm({"kind": "fixed", "guess": -4.0})}

    def cell(self, options, seed, settings):
        if log := os.environ.get("TOY_LOG"):
            with Path(log).open("a") as file:
                file.write(f"{options['kind']} {options['guess']} {seed}\n")
        if os.environ.get("TOY_FAILS") == f"{options['kind']} {seed}":
            raise LookupError("out of luck")
        target = settings["at"] + random.Random(seed).gauss(0, 0.1)
        distance = (options["guess"] - target) ** 2
        return {"validation": -distance, "distance": distance}

    def judge(self, cells):
        value, ci, p = cells.difference("fixed", "tuned", "distance")
        return [Finding("near", ci[0] > 0, value, ci, p, len(cells.seeds), f"nearer by {value:.2f}")]
