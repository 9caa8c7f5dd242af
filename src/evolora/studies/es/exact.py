"""Rung 5 of the ladder: is the whole answer exactly right? A reward of 0 or 1 on a pretrained small model.

    things   questions whose answers the base knows, and whose form it does not; from the base as it is
    upper    letters in upper case, from a LoRA that is half trained (``start``); gains are over that

    plain        EGGROLL on the weights
    factors      EGGROLL on the B of a LoRA (of the start's own B)
    decomposed   B and the magnitudes of a DoRA
    sampled      plain, but rewarded for sampled completions (temperature 1), not for greedy ones

Each arm chooses among three step sizes on the validation prompts of a tuning seed. Tests decode greedily.

Source: the ladder's fifth rung, which its source names and has not climbed; EGGROLL, arXiv 2511.16652.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from evolora.studies.judgement import compared, improved
from evolora.studies.search_study import UNDECIDED, SearchStudy
from evolora.studies.start import divided, half_trained
from evolora.studies.study import Cells, Claim, Finding, Preset, Settings
from evolora.studies.trial import LANGUAGE, TINY, base_of, problem_of
from evolora.tasks import load_task

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.problems import Problem

TASKS = ("things", "upper")
SIGMAS = {"things": (0.03, 0.3), "upper": (0.02, 0.08)}  # of a weight; of an entry of B


def _methods(task: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
    weight, entry = SIGMAS[task]
    return {
        f"{task} plain": ("eggroll", {"sigma": weight}),
        f"{task} factors": ("eggroll", {"space": "factors", "sigma": entry}),
        f"{task} decomposed": ("decomposed", {"sigma": entry}),
    }


LONGEST_TRAINING = 656  # of upper: what gradients see, and 400 more


class EsExact(SearchStudy):
    """See the module's text."""

    name: ClassVar[str] = "es-exact-reward"
    summary: ClassVar[str] = "plain and decomposed EGGROLL from a 0/1 reward, greedy and sampled: rung 5"
    source: ClassVar[str] = "EGGROLL, arXiv 2511.16652; DoRA, arXiv 2402.09353"
    methods: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
        **_methods("things"),
        **_methods("upper"),
        "things sampled": ("eggroll", {"sigma": SIGMAS["things"][0]}),
    }
    grid: ClassVar[tuple[Settings, ...]] = tuple({"lr": lr} for lr in (0.2, 0.5, 1.0))
    claims: ClassVar[tuple[Claim, ...]] = (
        *(
            Claim(
                f"{arm.replace(' ', '-')}-learns",
                f"{arm}: more held-out answers are exactly right in every seed",
                "a seed that does not gain, or p >= 0.05",
            )
            for arm in methods
        ),
        *(
            Claim(
                f"decomposed-ahead-on-{task}",
                f"decomposed EGGROLL ends with more right answers than plain EGGROLL on {task}",
                UNDECIDED,
            )
            for task in TASKS
        ),
    )
    presets: ClassVar[Mapping[str, Preset]] = {
        "smoke": Preset((1, 2), (100,), TINY | {"lessons": 2}),
        "small": Preset(
            tuple(range(1, 7)),
            (100,),
            LANGUAGE
            | {"layers": "top:4", "batch": 32, "common": {"population": 32}, "flops": 3e12}
            | {"validation": 60, "test": 150, "lessons": 48},
        ),
        "full": Preset(
            tuple(range(1, 13)),
            (100, 101, 102),
            LANGUAGE
            | {"layers": "top:10", "batch": 64, "common": {"population": 64}, "flops": 1e15}
            | {"validation": 100, "test": 150, "lessons": 48},
        ),
    }

    def problem(self, arm: str, seed: int, settings: Settings) -> tuple[Problem, Adapter | None]:
        """The task with its start."""
        name, _, kind = arm.partition(" ")
        base, sizes = base_of(settings["model"]), {key: settings[key] for key in ("validation", "test")}
        temperature = 1.0 if kind == "sampled" else 0.0
        if name == "things":
            task = load_task("things", seed=seed, **sizes)
            return problem_of(base, task, "exact", seed, settings, temperature), None
        whole = load_task("strings/upper:4", seed=seed, train=LONGEST_TRAINING, **sizes)
        lessons, task = divided(whole)
        school = problem_of(base, lessons, "exact", seed, {**settings, "batch": 16})
        return problem_of(base, task, "exact", seed, settings), half_trained(
            school, seed, settings["lessons"]
        )

    def judge(self, cells: Cells) -> list[Finding]:
        """Each arm against its start, then decomposed against plain."""
        found = [
            improved(cells, f"{arm.replace(' ', '-')}-learns", arm, "exact", "start_exact")
            for arm in self.methods
        ]
        for task in TASKS:
            claim = f"decomposed-ahead-on-{task}"
            found.append(compared(cells, claim, f"{task} decomposed", f"{task} plain", "exact"))
        return found
