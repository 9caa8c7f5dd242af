import math
import multiprocessing
import os
import random
import signal
import struct
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evolora.errors import ProtocolError, RunError
from evolora.runs import RunFolder, checkpoint

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.complex64,
]  # fmt: skip
numbers = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def bits(value):
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    if isinstance(value, list):
        return [bits(item) for item in value]
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return (type(value), value)


def raw(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor


@given(st.dictionaries(st.text(), numbers, max_size=5))
@settings(max_examples=50, deadline=None)
def test_numbers_come_back_to_the_bit(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("c")
    checkpoint.save(folder, 1, {}, values)
    assert bits(checkpoint.latest(folder).numbers) == bits(values)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7)], ids=str)
def test_tensors_come_back_to_the_bit_whatever_bits_they_hold(tmp_path, dtype, shape):
    size = torch.empty((), dtype=dtype).element_size() * math.prod(shape)
    data = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8)
    tensor = data.view(dtype).reshape(shape)
    checkpoint.save(tmp_path, 3, {"x": tensor}, {})
    found = checkpoint.latest(tmp_path).tensors["x"]
    assert found.dtype == dtype
    assert found.shape == shape
    assert torch.equal(raw(found), raw(tensor))


def test_views_transposes_and_shared_memory_are_saved_as_they_read(tmp_path):
    x = torch.arange(12.0).reshape(3, 4)
    parameter = torch.nn.Parameter(torch.ones(2))
    checkpoint.save(tmp_path, 0, {"x": x, "t": x.T, "row": x[1], "again": x, "p": parameter}, {})
    found = checkpoint.latest(tmp_path).tensors
    assert torch.equal(found["t"], x.T)
    assert torch.equal(found["row"], x[1])
    assert torch.equal(found["again"], x)
    assert torch.equal(found["p"], torch.ones(2))


def test_the_last_two_stay_and_the_newest_is_given(tmp_path):
    for step in (1, 5, 12, 1000000):
        checkpoint.save(tmp_path, step, {"x": torch.tensor(step)}, {"s": step})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000012", "step-1000000"]
    found = checkpoint.latest(tmp_path)
    assert (found.step, found.numbers["s"], int(found.tensors["x"])) == (1000000, 1000000, 1000000)


def test_tensors_outlive_the_pruned_file(tmp_path):
    checkpoint.save(tmp_path, 1, {"x": torch.arange(5000.0)}, {})
    found = checkpoint.latest(tmp_path)
    state = tmp_path / "step-000001" / "state.safetensors"
    state.write_bytes(bytes(state.stat().st_size))
    assert torch.equal(found.tensors["x"], torch.arange(5000.0))


@pytest.mark.parametrize("name", ["state.safetensors", "numbers.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, name, harm):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, {"x": torch.full((9,), float(step))}, {"s": step})
    file = tmp_path / "step-000002" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink() if harm == "remove" else file.write_bytes(data if harm == "flip" else data[:-3])
    found = checkpoint.latest(tmp_path)
    assert found.step == 1
    assert [line.split()[0] for line in found.passed_over] == ["step-000002"]
    checkpoint.save(tmp_path, 2, {"x": torch.zeros(1)}, {"s": "again"})
    assert checkpoint.latest(tmp_path).numbers == {"s": "again"}


def test_a_run_started_over_drops_the_damaged_future(tmp_path):
    for step in (8, 9):
        checkpoint.save(tmp_path, step, {}, {})
        (tmp_path / f"step-00000{step}" / "manifest.json").write_text("{}")
    with pytest.raises(RunError, match=r"step-000009 is damaged .*; start anew with --overwrite"):
        checkpoint.latest(tmp_path)
    checkpoint.save(tmp_path, 1, {}, {"s": 1})
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]


def test_leftovers_of_killed_writers_go_and_a_swap_cut_short_is_completed(tmp_path):
    checkpoint.save(tmp_path, 4, {}, {"s": 4})
    os.rename(tmp_path / "step-000004", tmp_path / f"step-000004.old-{os.getpid()}")
    (tmp_path / f"step-000005.tmp-{os.getpid()}").mkdir()
    (tmp_path / f"step-000006.tmp-{os.getppid()}").mkdir()
    assert checkpoint.latest(tmp_path).numbers == {"s": 4}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000004", f"step-000006.tmp-{os.getppid()}"]


def test_no_folder_and_an_empty_folder_have_no_checkpoint(tmp_path):
    assert checkpoint.latest(tmp_path / "none") is None
    assert checkpoint.latest(tmp_path) is None


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path):
    checkpoint.save(tmp_path, 1, {}, {"s": 1})
    with pytest.raises(ProtocolError, match=r"numbers\.f"):
        checkpoint.save(tmp_path, 2, {}, {"f": print})
    with pytest.raises(ProtocolError, match="cannot be saved"):
        checkpoint.save(tmp_path, 2, {"x": torch.zeros(2, dtype=torch.complex128)}, {})
    with pytest.raises(ProtocolError, match="step >= 0"):
        checkpoint.save(tmp_path, -1, {}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]


def test_a_folder_that_cannot_be_written_is_a_run_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        checkpoint.save(tmp_path / "file", 1, {}, {})


def state_of(step):
    generator = torch.Generator().manual_seed(step)
    return {"x": torch.randn(40_000, generator=generator), "y": torch.full((3,), step)}, {
        "step": step,
        "f": step / 7,
    }


def write_for_ever(folder, start, pipe):
    for step in range(start, 10**6):
        checkpoint.save(folder, step, *state_of(step))
        pipe.send(step)


def test_a_kill_at_any_moment_leaves_the_last_good_checkpoint(tmp_path):
    context = multiprocessing.get_context("fork")
    moments, step = random.Random(0), 0
    for _ in range(10):
        receive, send = context.Pipe(duplex=False)
        writer = context.Process(target=write_for_ever, args=(tmp_path, step + 1, send))
        writer.start()
        reported = receive.recv()
        time.sleep(moments.uniform(0, 0.15))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        while receive.poll():
            reported = receive.recv()
        found = checkpoint.latest(tmp_path)
        assert found.step in (reported, reported + 1)
        tensors, values = state_of(found.step)
        assert found.numbers == values
        assert all(torch.equal(found.tensors[name], tensor) for name, tensor in tensors.items())
        assert all(p.name.startswith("step-") and "." not in p.name for p in tmp_path.iterdir())
        step = found.step


def test_a_run_goes_on_from_its_checkpoint_with_its_journal_cut_back(tmp_path):
    run = RunFolder.create(tmp_path, {})
    for step in (1, 2, 3):
        run.journal.append({"step": step})
        if step == 2:
            run.save_checkpoint(step, {"x": torch.ones(2)}, {"s": step})
    run.close()
    run = RunFolder.open(tmp_path)
    assert run.resume().step == 2
    assert run.journal.read() == [{"step": 1}, {"step": 2}]
    run.close()


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path):
    run = RunFolder.create(tmp_path, {})
    run.journal.append({"step": 0})
    assert run.resume() is None
    assert run.journal.read() == []
    run.close()
