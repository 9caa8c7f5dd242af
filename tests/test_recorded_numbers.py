"""Numbers on pages are those of the records they name."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_page_of_benchmarks_is_made_from_its_records(script, recorded):
    page = script("page")
    records = [recorded(f"bench/{name}") for name in page.RECORDS]
    assert (ROOT / "docs/benchmarks.md").read_text() == page.page(*records)


def test_the_page_of_results_is_made_from_its_records(script, recorded):
    page = script("results_page")
    records = [recorded(name) for name in page.RECORDS]
    assert (ROOT / "docs/results.md").read_text() == page.page(*records)


def test_a_zero_one_reward_raises_exact_match_on_two_tasks(script, recorded):
    study, record = script("exact_reward"), recorded("exact_reward")
    for name in study.ARMS:
        cells = [cell for cell in record["cells"] if cell["arm"] == name]
        assert sorted(cell["seed"] for cell in cells) == list(study.SEEDS)
        assert all(cell["method"] == study.ARMS[name].method for cell in cells)
        assert study.summary(cells) == record["summary"][name]
        assert record["summary"][name]["holds"]


def test_the_cells_of_the_tables_are_those_that_their_scripts_make(script, recorded):
    methods, rewards, settings = script("methods"), script("rewards"), script("settings")
    for cell in recorded("methods")["cells"]:
        assert cell["options"] == methods.ARMS[cell["arm"]][1].get(cell["task"], {})
        assert cell["seed"] in methods.SEEDS
        assert cell["ledger"]["forward_flops"] >= methods.FORWARD_FLOPS
    for cell in recorded("rewards")["cells"]:
        arm = rewards.ARMS[cell["reward"]]
        assert (cell["task"], cell["layers"], cell["options"]) == (arm.task, arm.layers, arm.options)
        assert cell["seed"] in rewards.SEEDS
    for row in recorded("settings")["rows"]:
        assert row["options"] in settings.TRIES[row["method"]][1]
        assert settings.SEED not in methods.SEEDS


def test_the_readme_quotes_the_throughput_record(recorded):
    rows = recorded("bench/throughput")["rows"]
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
