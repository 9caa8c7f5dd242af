"""Questions of general knowledge: the knowledge is there, the required form of the answer is not.

The facts are the package's own (``data/*.tsv``: item, answer, group). Half of the items are for the test.
Answers are one line. A prompt may show a solved item, which then stands in no split.
Items whose answer is disputed or not unique (transcontinental countries, foods that are animals) are left
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from evolora.tasks.splits import balanced, capacities, check_size, hashed
from evolora.tasks.task import SPLITS, Example, Split, Task

SHARES: dict[Split, float] = {"train": 0.4, "validation": 0.1, "test": 0.5}


@dataclass(frozen=True)
class Facts:
    """A table of facts and the question that asks for them.

    Attributes:
        name: the task's name.
        table: the file in ``data``.
        prompt: with ``{}`` where the item stands.
        description: one line.
        answers: which answers are kept; all if empty.
    """

    name: str
    table: str
    prompt: str
    description: str
    answers: tuple[str, ...] = ()

    def examples(self) -> dict[str, list[Example]]:
        """All examples by answer, each in a fixed order of hashes."""
        lines = files("evolora.tasks").joinpath("data", self.table).read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t") for line in lines[1:]]
        kept: dict[str, list[Example]] = {}
        for item, answer, group in rows:
            if (answer in self.answers or not self.answers) and f": {item}\n" not in self.prompt:
                columns = {"item": item, "group": group}
                example = Example(self.prompt.format(item), f" {answer}", self.name, columns)
                kept.setdefault(answer, []).append(example)
        return {a: sorted(es, key=lambda e: hashed("evolora/facts", e.text)) for a, es in kept.items()}

    def load(self, sizes: dict[Split, int | None], seed: int) -> Task:
        """The task: each split a fixed share of every answer's items; the seed chooses and orders within it.

        Raises:
            TaskError: more prompts are asked for than a split has.
        """
        parts: dict[Split, dict[str, list[Example]]] = {split: {} for split in SPLITS}
        for answer, examples in self.examples().items():
            start = 0
            for split, room in capacities(len(examples), SHARES).items():
                parts[split][answer] = examples[start : start + room]
                start += room
        chosen: dict[Split, tuple[Example, ...]] = {}
        for split, groups in parts.items():
            check_size(sizes[split], sum(map(len, groups.values())), where=self.name, split=split)
            chosen[split] = tuple(balanced(groups, f"{self.name}/{split}/{seed}")[: sizes[split]])
        return Task(
            self.name,
            chosen["train"],
            chosen["validation"],
            chosen["test"],
            max_new_tokens=6,
            description=self.description,
            source="facts written for this package",
            stop="\n",
        )


CONTINENT = "Q: On which continent is {}?\nA:"
FACTS = (
    Facts(
        "continents",
        "continents.tsv",
        CONTINENT,
        "countries and cities -> Africa, Asia or Europe, in one word",
        ("Africa", "Asia", "Europe"),
    ),
    Facts("world", "continents.tsv", CONTINENT, "countries and cities -> one of six continents"),
    Facts(
        "animals",
        "animals.tsv",
        "Animal: a salmon\nClass: fish\n\nAnimal: {}\nClass:",
        "animals -> mammal, bird, fish, insect or reptile, in one word",
    ),
    Facts(
        "things",
        "things.tsv",
        "Word: bread\nCategory: food\n\nWord: {}\nCategory:",
        "things -> food, clothing, tool, vehicle, furniture or animal, in one word",
    ),
)
