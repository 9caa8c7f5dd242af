import json

import pytest
import torch

from evolora.bench import throughput
from evolora.bench.memory import measure as measure_memory
from evolora.bench.plan import (
    FULL,
    QUICK,
    ForwardCase,
    GenerationCase,
    MemoryCase,
    Plan,
    PrefixCase,
    StepCase,
    dtypes,
)  # fmt: skip
from evolora.engine import Base, Engine, load_base
from evolora.errors import ConfigError
from evolora.progress import Progress

TINY = (
    ForwardCase(4, 2, 8, rank=2, looped=2),
    GenerationCase(4, 2, rank=2, new_tokens=3, looped=2),
    PrefixCase(4, 2, 8, rank=2, shares=(0.7, 0.3)),
    StepCase(4, 2, rank=1),
)
FORWARD = (
    "fraction_of_base", "fraction_of_adapters",
    "vs_peft_loop", "vs_peft_mixed", "vs_copy_loop", "vs_merge_restore",
)  # fmt: skip


class Seen(Progress):
    def __init__(self):
        self.total, self.steps = None, []

    def start(self, total, budget):
        self.total = total

    def update(self, step, metrics):
        self.steps.append(step)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_bench_has_a_row_for_every_case_and_all_contestants_agree(kind, request, char_tokenizer):
    base = Base(request.getfixturevalue(f"tiny_{kind}"), char_tokenizer, "tiny")
    seen = Seen()
    found = throughput.run(base, progress=seen, plan=Plan(2, TINY, ()))
    assert json.loads(json.dumps(found)) is not None
    forward, generation, *prefix, step = found["rows"]
    assert [row["kind"] for row in found["rows"]] == ["forward", "generation", "prefix", "prefix", "step"]
    assert forward["agrees"] is generation["agrees"] is True
    assert forward["extrapolated_from"] == 2
    assert forward["reasons"] == generation["reasons"] == {}
    assert all(forward[name] > 0 for name in FORWARD)
    assert all(generation[name] > 0 for name in ("vs_sequential", "vs_peft_loop", "vs_peft_mixed"))
    assert [row["layers"] for row in prefix] == [f"top {k} of {base.depth}" for k in (base.depth - 1, 1)][:2]
    assert all(row["vs_full_depth"] > 0 and isinstance(row["identical"], bool) for row in prefix)
    assert step["cost"] > 0
    assert (seen.total, seen.steps) == (4, [1, 2, 3, 4])
    assert found["machine"]["threads"] == torch.get_num_threads()


def test_a_peer_that_fails_is_null_with_its_reason(tiny_opt, char_tokenizer):
    base = Base(tiny_opt, char_tokenizer, "tiny")
    (row,) = throughput.run(base, plan=Plan(1, (ForwardCase(2, 1, 4, rank=1),), ()))["rows"]
    assert row["vs_peft_mixed"] is None
    assert "adapter_names" in row["reasons"]["peft_mixed"]
    assert row["vs_peft_loop"] > 0
    assert row["extrapolated_from"] is None
    assert row["agrees"] is True


def test_without_peers_their_ratios_are_null(llama_engine):
    plan = Plan(1, (ForwardCase(4, 1, 4, rank=1, looped=2, peers=False),), ())
    (row,) = throughput.run(llama_engine.base, plan=plan)["rows"]
    assert all(row[name] is None for name in FORWARD if name.startswith("vs_"))
    assert row["fraction_of_base"] > 0
    assert row["extrapolated_from"] is None


def test_half_precision_has_its_own_cases_and_no_verdict_on_agreement(tiny_llama, char_tokenizer):
    base = Base(tiny_llama.to(torch.bfloat16), char_tokenizer, "tiny")
    (row,) = throughput.run(base, plan=Plan(1, (), (ForwardCase(2, 1, 4, rank=1),)))["rows"]
    assert row["dtype"] == "bfloat16"
    assert row["agrees"] is None
    assert all(row[name] > 0 for name in FORWARD)


def test_rows_of_several_bases_stand_in_one_table():
    parts = [{"rows": [1, 2], "machine": {}, "notes": ["n"]}, {"rows": [3], "machine": {}, "notes": ["n"]}]
    assert throughput.join(parts) == {"rows": [1, 2, 3], "machine": {}, "notes": ["n"]}


def test_memory_is_measured_in_fresh_processes(model_folder):
    engine = Engine(load_base(model_folder))
    row = measure_memory(engine, MemoryCase(64, against=2, rows=1, tokens=8, rank=2))
    assert row["reasons"] == {}
    assert 0.9 < row["ratio"] < 1.2  # next to nothing beside Python and its libraries
    assert row["peak_mb"] >= row["loaded_mb"] * 0.9 > 50
    assert row["ratio"] == row["peak_mb"] / row["peak_mb_against"]


def test_a_base_that_no_fresh_process_can_load_has_no_memory_ratio(llama_engine):
    row = measure_memory(llama_engine, MemoryCase(4, against=2, rows=1, tokens=8, rank=2))
    assert row["ratio"] is None
    assert "no model 'tiny'" in row["reasons"]["ratio"]


def test_the_plans_hold_what_the_bench_promises():
    assert FULL.rounds >= 5
    assert QUICK.rounds >= 3
    assert ForwardCase(16, 4, 64, rank=8, looped=2) in FULL.of("float32")
    assert ForwardCase(16, 4, 64, rank=8, looped=2) in FULL.of("bfloat16")
    for plan in (FULL, QUICK):
        kinds = {type(case) for case in plan.of("float32")}
        assert kinds >= {ForwardCase, GenerationCase, PrefixCase, MemoryCase}


def test_dtypes_are_read_from_a_list():
    assert dtypes(None, quick=True) == ["float32"]
    assert dtypes(None, quick=False) == ["float32", "bfloat16"]
    assert dtypes("bfloat16, float32,bfloat16", quick=True) == ["bfloat16", "float32"]
    with pytest.raises(ConfigError, match="int3"):
        dtypes("float32,int3", quick=False)
