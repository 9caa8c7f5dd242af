import sys
import types

import pytest

MEASURED = {
    "rows": [
        {"members": 16, "rank": 8, "dtype": "float32", "fraction_of_base": 0.94, "vs_peft_loop": 3.1},
        {
            "members": 64,
            "rank": 4,
            "dtype": "float32",
            "fraction_of_base": 0.9,
            "vs_peft_mixed": float("nan"),
        },
    ],
    "machine": {"cores": 2},
    "notes": ["two cores are saturated"],
}


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    calls = []

    def throughput(base, quick, progress):
        calls.append((base, quick))
        progress.start(2, "rows")
        progress.update(1, {})
        return MEASURED

    module = types.ModuleType("evolora.bench.throughput")
    module.run = throughput
    monkeypatch.setitem(sys.modules, "evolora.bench.throughput", module)
    monkeypatch.setattr("evolora.engine.load_base", lambda name, **options: (name, options["dtype"]))
    return calls


def test_json_is_what_was_measured(run, only_object, calls):
    found = only_object(run("bench", "--quick", "--dtype", "bfloat16", "--json").stdout)
    assert calls == [(("smollm2-135m", "bfloat16"), True)]
    assert found["rows"][0] == MEASURED["rows"][0]
    assert found["rows"][1]["vs_peft_mixed"] is None


def test_the_table_has_every_column_and_the_notes(run):
    result = run("bench")
    for part in ("members", "vs peft loop", "vs peft mixed", "0.94", "two cores are saturated", "cores 2"):
        assert part in result.stdout
    assert "1 of 2 rows" in result.stderr
