"""The numbers of the example in docs/diagnostics.md are those of its record."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def change(part):
    low, high = part["ci"]
    return f"{part['value']:+.2f} [{low:.2f}, {high:.2f}]"


def rows(runs):
    """The example's table, line by line."""
    ways = [runs["eggroll"], runs["adamw"]]
    found = [way["diagnostics"] for way in ways]

    def row(name, values):
        return f"| {name} | {' | '.join(values)} |"

    def prior(part, key):
        return f"{part['retention'][key]['accuracy']:.2f}"

    return [
        row(
            "right on the test: base -> adapted",
            [f"{way['base']['accuracy']:.2f} -> {way['adapted']['accuracy']:.2f}" for way in ways],
        ),
        row("length of the delta", [f"{part['spectra']['whole']['norm']:.1f}" for part in found]),
        row(
            "over a random walk",
            [f"{part['walk']['ratio']:.2f}" if "walk" in part else "no" for part in found],
        ),
        row("change over weight (rms)", [f"{part['sparsity']['whole']['relative']:.1%}" for part in found]),
        row("swallowed by bf16", [f"{part['sparsity']['whole']['swallowed']:.1%}" for part in found]),
        row(
            "effective rank, all modules",
            [f"{part['spectra']['whole']['effective_rank']:.0f}" for part in found],
        ),
        row("energy in the top 16", [f"{part['spectra']['whole']['energy']['16']:.0%}" for part in found]),
        row(
            "KL to the base on task, nats a token",
            [f"{part['divergence']['on_task']['to_base']:.2f}" for part in found],
        ),
        row(
            "KL to the base off task, nats a token",
            [f"{part['divergence']['off_task']['to_base']:.2f}" for part in found],
        ),
        row(
            "`animals`, before -> after",
            [f"{prior(part, 'before')} -> {prior(part, 'after')}" for part in found],
        ),
        row(
            "its paired change, 95 %",
            [change(part["retention"]["difference"]) for part in found],
        ),
        row(
            "log-likelihood of its answers, nats a token",
            [
                f"{part['retention']['log_likelihood']['before']:.2f} -> "
                f"{part['retention']['log_likelihood']['after']:.2f}"
                for part in found
            ],
        ),
    ]


def test_the_page_quotes_the_record():
    record = json.loads((ROOT / "results/diagnostics_example.json").read_text())
    page = (ROOT / "docs/diagnostics.md").read_text()
    for line in rows(record["runs"]):
        assert line in page
    gradient = record["runs"]["eggroll"]["diagnostics"]["gradient"]
    said = (
        f"cosine {gradient['cosine']:.5f} with the gradient; {gradient['expected']:.5f} is what "
        f"{gradient['directions']} directions can reach, {gradient['chance']:.5f} chance, and the 0/1 reward "
        f"itself {gradient['own']:.5f}"
    )
    text = " ".join(page.split())
    assert said in text
    norms = [run["diagnostics"]["spectra"]["whole"]["norm"] for run in record["runs"].values()]
    assert f"{norms[0] / norms[1]:.0f} times AdamW's" in text
    off_task = record["runs"]["eggroll"]["diagnostics"]["divergence"]["off_task"]["to_base"]
    assert f"A KL of {off_task:.1f} nats a token" in text


def test_the_record_names_what_made_it():
    record = json.loads((ROOT / "results/diagnostics_example.json").read_text())
    assert record["provenance"]["git"]["changed"] is False
    assert {run["config"]["diagnose"] for run in record["runs"].values()} == {True}
    assert len({run["config"]["seed"] for run in record["runs"].values()}) == 1
