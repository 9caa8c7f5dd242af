import pyarrow.parquet as parquet
import pytest

from evolora.errors import RunError
from evolora.runs.metrics import write_metrics


def test_columns_are_the_union_of_the_keys_with_their_types(tmp_path):
    entries = [
        {"step": 1, "reward": 0.5, "note": None, "flops": 2**70, "ok": True},
        {"step": 2, "reward": 1, "method": "x", "flops": 1, "odd": [1, 2], "mixed": 1},
        {"step": 3, "mixed": "two", "ok": None},
    ]
    table = parquet.read_table(write_metrics(entries, tmp_path / "metrics.parquet"))
    assert table.column_names == ["step", "reward", "note", "flops", "ok", "method", "odd", "mixed"]
    assert [str(kind) for kind in table.schema.types] == [
        "int64", "double", "double", "double", "bool", "string", "string", "string",
    ]  # fmt: skip
    assert table.to_pydict() == {
        "step": [1, 2, 3],
        "reward": [0.5, 1.0, None],
        "note": [None] * 3,
        "flops": [2.0**70, 1.0, None],
        "ok": [True, None, None],
        "method": [None, "x", None],
        "odd": [None, "[1, 2]", None],
        "mixed": [None, "1", '"two"'],
    }


def test_a_run_without_steps_has_an_empty_table(tmp_path):
    assert parquet.read_table(write_metrics([], tmp_path / "m.parquet")).num_rows == 0


def test_an_old_table_is_replaced_and_a_missing_folder_is_an_error(tmp_path):
    for n in (1, 2):
        write_metrics([{"step": s} for s in range(n)], tmp_path / "m.parquet")
    assert parquet.read_table(tmp_path / "m.parquet").num_rows == 2
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(RunError, match="cannot be written"):
        write_metrics([], tmp_path / "none" / "m.parquet")
