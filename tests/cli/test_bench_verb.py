import sys
import types

import pytest

MEASURED = {
    "rows": [
        {"kind": "forward", "members": 16, "dtype": "float32", "fraction_of_base": 0.94, "vs_peft_loop": 3.1},
        {
            "kind": "generation",
            "members": 64,
            "dtype": "float32",
            "fraction_of_base": 0.9,
            "vs_peft_mixed": float("nan"),
            "agrees": True,
            "reasons": {"peft_mixed": "it fell over"},
        },
    ],
    "machine": {"cores": 2, "gpus": None},
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

    import evolora.bench

    module = types.ModuleType("evolora.bench.throughput")
    module.run = throughput
    module.join = lambda measured: {**MEASURED, "rows": [row for part in measured for row in part["rows"]]}
    monkeypatch.setitem(sys.modules, "evolora.bench.throughput", module)
    monkeypatch.setattr(evolora.bench, "throughput", module, raising=False)
    monkeypatch.setattr("evolora.engine.load_base", lambda name, **options: (name, options["dtype"]))
    return calls


def test_json_is_what_was_measured(run, only_object, calls):
    found = only_object(run("bench", "--quick", "--dtype", "bfloat16", "--json").stdout)
    assert calls == [(("smollm2-135m", "bfloat16"), True)]
    assert found["rows"][0] == MEASURED["rows"][0]
    assert found["rows"][1]["vs_peft_mixed"] is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["float32", "bfloat16"]),
        (["--quick"], ["float32"]),
        (["--dtype", "bfloat16, float32"], ["bfloat16", "float32"]),
    ],
)
def test_each_dtype_is_measured_on_a_base_of_its_own(run, only_object, calls, arguments, expected):
    found = only_object(run("bench", "--json", *arguments).stdout)
    assert [dtype for (_, dtype), _ in calls] == expected
    assert len(found["rows"]) == 2 * len(expected)


def test_an_unknown_dtype_is_refused_before_anything_is_measured(run, calls):
    result = run("bench", "--dtype", "float32,int3")
    assert result.exit_code == 2
    assert "int3" in result.stderr
    assert calls == []


def test_the_tables_have_every_column_the_reasons_and_the_notes(run):
    result = run("bench", "--quick")
    for part in ("Forward", "Generation", "vs peft loop", "0.94", "yes", "it fell over", "cores 2"):
        assert part in result.stdout
    assert "two cores are saturated" in result.stdout
    assert "gpus" not in result.stdout
    assert "1 of 2 rows" in result.stderr
