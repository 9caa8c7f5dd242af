"""The journal as a table: ``metrics.parquet``, one row a step, one column a key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolora.runs.atomic import write_atomically

if TYPE_CHECKING:
    import pyarrow

_INT64 = 2**63


def write_metrics(entries: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Writes the entries of a journal (``Journal.read``) as a Parquet file, atomically.

    The columns are the union of the keys in the order of their first appearance; a missing key is null. A
    column is bool, int64, float64 or string by what all its values are; integers beyond 64 bits become
    float64, anything mixed or nested becomes its JSON text.

    Raises:
        RunError: the file cannot be written.
    """
    import pyarrow
    import pyarrow.parquet

    names = list(dict.fromkeys(name for entry in entries for name in entry))
    columns = {name: _column([entry.get(name) for entry in entries]) for name in names}
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return write_atomically(path, sink.getvalue().to_pybytes())


def _column(values: list[Any]) -> pyarrow.Array:
    import pyarrow

    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pyarrow.array(values, pyarrow.bool_())
    if kinds == {int} and all(-_INT64 <= value < _INT64 for value in values if value is not None):
        return pyarrow.array(values, pyarrow.int64())
    if kinds <= {int, float}:  # also a column without any value
        return pyarrow.array([None if value is None else float(value) for value in values], pyarrow.float64())
    if kinds == {str}:
        return pyarrow.array(values, pyarrow.string())
    return pyarrow.array([None if value is None else json.dumps(value) for value in values], pyarrow.string())
