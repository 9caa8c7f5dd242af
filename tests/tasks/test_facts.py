from collections import Counter
from importlib.resources import files

import pytest

from evolora.errors import TaskError
from evolora.tasks import load_task, task_names
from evolora.tasks.facts import FACTS

NAMES = [facts.name for facts in FACTS]


@pytest.mark.parametrize("name", NAMES)
def test_splits_are_balanced_large_enough_and_every_answer_stands_in_all(name):
    task = load_task(name)
    assert len(task.test) >= 150
    shares = []
    for split in (task.train, task.validation, task.test):
        counts = Counter(e.answer for e in split)
        shares.append({a: n / len(split) for a, n in counts.items()})
    assert shares[0].keys() == shares[1].keys() == shares[2].keys()
    assert all(abs(shares[0][a] - shares[2][a]) < 0.02 for a in shares[0])


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_never_moves_a_prompt_to_another_split(name):
    for split in ("train", "validation", "test"):
        one, two = ({e.prompt for e in load_task(name, seed).split(split)} for seed in (0, 1))
        assert one == two
    assert load_task(name, 0).train != load_task(name, 1).train


def test_sizes_are_selectable_and_stay_balanced():
    task = load_task("continents", 3, train=30, validation=6, test=60)
    assert (len(task.train), len(task.validation), len(task.test)) == (30, 6, 60)
    assert max(Counter(e.answer for e in task.train).values()) <= 11
    with pytest.raises(TaskError, match="continents: 999 test prompts asked for, but the split has"):
        load_task("continents", test=999)


def test_the_prompts_have_the_form_that_was_measured():
    kenya = [
        e
        for s in ("train", "validation", "test")
        for e in load_task("continents").split(s)
        if "Kenya" in e.prompt
    ]
    assert [(e.prompt, e.answer) for e in kenya] == [("Q: On which continent is Kenya?\nA:", " Africa")]
    animals = load_task("animals")
    prompts = [e.prompt for split in ("train", "validation", "test") for e in animals.split(split)]
    shown = "Animal: a salmon\nClass: fish\n\nAnimal: "
    assert all(prompt.startswith(shown) and prompt.endswith("\nClass:") for prompt in prompts)
    assert not any("salmon" in prompt.removeprefix(shown) for prompt in prompts)


def test_continents_keeps_the_three_of_one_word_and_world_all_six():
    assert {e.answer for e in load_task("continents").train} == {" Africa", " Asia", " Europe"}
    assert len({e.answer for e in load_task("world").train}) == 6


def test_the_demonstration_is_one_of_them():
    assert load_task("demo") in [load_task(name) for name in NAMES]


@pytest.mark.parametrize("table", sorted({facts.table for facts in FACTS}))
def test_every_line_of_a_table_is_a_whole_fact_that_stands_once(table):
    text = files("evolora.tasks").joinpath("data", table).read_text(encoding="utf-8")
    lines = text.splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    assert lines[0] == "item\tanswer\tgroup"
    assert all(len(row) == 3 and all(cell == cell.strip() != "" for cell in row) for row in rows)
    assert len({row[0].lower() for row in rows}) == len(rows)
    spoken = [row[0].replace("utility", "yutility") for row in rows]  # begins with a consonant's sound
    articles = [item for item in spoken if item.startswith(("a ", "an "))]
    assert all(item.startswith("an ") == (item.split(" ", 1)[1][0].lower() in "aeiou") for item in articles)


def test_every_listed_name_loads_and_says_where_it_comes_from():
    for name, description, source in task_names():
        assert description
        assert source
        if name not in ("sentiment", "corpus:PATH"):
            assert load_task(name).train
