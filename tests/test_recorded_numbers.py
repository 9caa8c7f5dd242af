"""Numbers on pages are those of the records they name."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def script(monkeypatch):
    """Imports a script of benchmarks by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_the_page_of_benchmarks_is_made_from_its_records(script):
    page = script("page")
    records = [json.loads((ROOT / "results/bench" / name).read_text()) for name in page.RECORDS]
    assert (ROOT / "docs/benchmarks.md").read_text() == page.page(*records)


def test_the_page_of_results_is_made_from_its_records(script):
    page = script("results_page")
    records = [json.loads((ROOT / "results" / f"{name}.json").read_text()) for name in page.RECORDS]
    assert (ROOT / "docs/results.md").read_text() == page.page(*records)


def test_a_zero_one_reward_raises_exact_match_on_two_tasks(script):
    study, record = script("exact_reward"), json.loads((ROOT / "results/exact_reward.json").read_text())
    for name in study.ARMS:
        cells = [cell for cell in record["cells"] if cell["arm"] == name]
        assert sorted(cell["seed"] for cell in cells) == list(study.SEEDS)
        assert all(cell["method"] == study.ARMS[name].method for cell in cells)
        assert study.summary(cells) == record["summary"][name]
        assert record["summary"][name]["holds"]


def test_the_readme_quotes_the_throughput_record():
    rows = json.loads((ROOT / "results/bench/throughput.json").read_text())["rows"]
    readme = (ROOT / "README.md").read_text()

    def of(kind, **wanted):
        found = [row for row in rows if row["kind"] == kind and wanted.items() <= row.items()]
        assert len(found) == 1
        return found[0]

    scoring = of("forward", members=64, rank=8, dtype="float32")
    decoding = of("generation", members=64, dtype="float32")
    top = of("prefix", members=64, layers="top 5 of 30", dtype="float32")
    for line in (
        f"| scores of 64 adapters, a row of 16 tokens each | {scoring['vs_peft_loop']:.1f} x | "
        f"{scoring['vs_peft_mixed']:.1f} x |",
        f"| completions of 64 adapters, a prompt each | {decoding['vs_peft_loop']:.1f} x | "
        f"{decoding['vs_peft_mixed']:.1f} x |",
        f"adapters on the top 5 layers are {top['vs_full_depth']:.1f} times as fast as on all",
    ):
        assert line in readme
