"""The record of the ladder's first rungs: its cells can be made again, and the page says what it says."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ladder(script):
    return script("matrix_ladder")


@pytest.fixture(scope="module")
def record(recorded):
    return recorded("matrix_ladder")


def test_the_record_was_made_with_the_settings_of_the_script(ladder, record):
    assert record["settings"] == ladder.settings()


@pytest.mark.parametrize(("arm", "rank", "seed"), [("plain", 1, 0), ("magnitude_only", 8, 11)])
def test_a_cell_is_made_again_to_the_same_number(ladder, record, arm, rank, seed):
    lr = record["chosen"][ladder.key("dora", arm)]["lr"]
    assert ladder.run("dora", arm, rank, seed, lr) == pytest.approx(
        record["cells"][ladder.key("dora", arm, rank, seed)], rel=1e-3
    )


def test_selection_and_results_share_no_seed_and_every_cell_is_there(ladder, record):
    assert not set(ladder.SEEDS) & set(ladder.VALIDATION)
    assert len(ladder.SEEDS) >= 8
    cells = {
        ladder.key(kind, arm, rank, seed)
        for kind in ladder.TARGETS
        for arm in ladder.ARMS
        for rank in ladder.RANKS
        for seed in ladder.SEEDS
    }
    assert set(record["cells"]) == cells
    for kind in ladder.TARGETS:
        for arm in ladder.ARMS:
            chosen = record["chosen"][ladder.key(kind, arm)]
            assert chosen == ladder.select(record["validation"], kind, arm)
            assert not chosen["at_edge"] or arm == "magnitude_only"  # which no lr takes off its floor


def test_no_run_ends_below_what_its_arm_can_reach(ladder, record):
    for kind in ladder.TARGETS:
        for arm in ladder.ARMS:
            for rank in ladder.RANKS:
                for seed in ladder.SEEDS:
                    found = record["cells"][ladder.key(kind, arm, rank, seed)]
                    assert found >= ladder.floor(kind, arm, rank, seed) - 1e-5


def test_summary_tests_and_verdict_follow_from_the_cells(ladder, record):
    again = json.loads(json.dumps(ladder.summarise(record)))
    assert again["verdict"] == record["verdict"]
    assert [row["arm"] for row in again["summary"]] == [row["arm"] for row in record["summary"]]
    for one, two in zip(again["summary"], record["summary"], strict=True):
        for name in ("error", "reliable", "floor", "sd_over_seeds"):
            assert one[name] == pytest.approx(two[name], rel=1e-4)
    for one, two in zip(again["decomposed_minus"], record["decomposed_minus"], strict=True):
        assert one["value"] == pytest.approx(two["value"], rel=1e-6)
        assert one["p"] == pytest.approx(two["p"], rel=1e-6)


def test_the_page_shows_the_tables_of_the_record(ladder, record):
    page = (ROOT / "docs" / "ladder.md").read_text()
    for table in ladder.tables(record).split("\n\n"):
        assert table.strip() in page


def test_what_the_page_says_beside_the_tables_is_in_the_record(ladder, record):
    def errors(kind, arm, rank):
        return [record["cells"][ladder.key(kind, arm, rank, seed)] for seed in ladder.SEEDS]

    def difference(kind, other, rank):
        wanted = (kind, other, str(rank))
        rows = record["decomposed_minus"]
        return next(row for row in rows if (row["target"], row["against"], row["rank"]) == wanted)

    assert sum(error >= ladder.RELIABLE for error in errors("additive", "decomposed", 8)) == 5
    assert min(min(errors("additive", "plain", rank)) for rank in ladder.RANKS) > 0.25
    assert max(errors("additive", "decomposed", 1)) < 0.25
    assert difference("additive", "plain", 2)["ci"][1] < 0 < difference("additive", "plain", 8)["ci"][0]
    assert all(difference("dora", "plain_factors", rank)["ci"][1] < 0 for rank in ladder.RANKS)
