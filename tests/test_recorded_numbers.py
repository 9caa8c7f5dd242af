"""Numbers on pages are those of the records they name."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def page():
    spec = importlib.util.spec_from_file_location("page", ROOT / "benchmarks" / "page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_benchmarks_is_made_from_its_records(page):
    records = [json.loads((ROOT / "results/bench" / name).read_text()) for name in page.RECORDS]
    assert (ROOT / "docs/benchmarks.md").read_text() == page.page(*records)


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
