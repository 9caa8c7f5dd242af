import io

import pytest

from evolora.cli.progress import Lines, LiveBar, describe, make_progress
from evolora.progress import Progress


def test_quiet_is_the_silent_progress():
    assert type(make_progress(quiet=True)) is Progress


def test_a_pipe_gets_lines_and_a_terminal_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert isinstance(make_progress(), Lines)
    monkeypatch.setattr("sys.stderr", Terminal())
    assert isinstance(make_progress(), LiveBar)


def test_a_line_has_rewards_rate_and_budget():
    line = describe(10, {"reward_mean": 0.5, "reward_best": 0.75}, 2e12, 8e12, "flops", elapsed=20.0)
    assert line == "reward 0.500, best 0.750, 2.0 s/step, 2e+12 of 8e+12 flops"
    assert describe(10, {}, 10, 1234, "steps", elapsed=5.0) == "2.00 steps/s, 10 of 1,234 steps"
    assert describe(3, {}, 3, 9, "cells", elapsed=12.0) == "4.0 s/cell, 3 of 9 cells"
    assert describe(1, {"loss": 0.25}, 1, 2, "steps", elapsed=2.0) == "loss 0.250, 2.0 s/step, 1 of 2 steps"


def test_lines_are_few_but_the_last_step_is_always_told(capsys):
    progress = Lines()
    progress.start(100, "steps")
    for step in range(1, 101):
        progress.update(step, {"reward_mean": 0.0})
    progress.finish()
    progress.finish()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 1", "step 100"]


def test_lines_tell_the_time_left_and_a_resumed_study_its_cells(capsys, monkeypatch):
    clock = iter([0.0, 10.0, 20.0, 100.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    progress = Lines()
    progress.start(50, "cells")
    for step, spent in ((0, 10), (1, 11), (9, 19)):
        progress.update(step, {"spent": spent})
    assert capsys.readouterr().err.splitlines() == [
        "cell 10: 10 of 50 cells",
        "cell 11: 20.0 s/cell, 11 of 50 cells, 0:06:30 left",
        "cell 19: 11.1 s/cell, 19 of 50 cells, 0:05:10 left",
    ]


def test_the_bar_has_a_bar_for_each_part(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    progress = LiveBar()
    progress.parts({"before": (1, 2)})
    progress.start(6, "cells")
    for done in range(3):
        progress.parts({"plain": (done, 4), "[b]dora": (0, 2)})
    progress.finish()
    progress.start(2, "steps")
    progress.finish()
    shown = screen.getvalue()
    assert "before" not in shown
    assert "2 of 4" in shown
    assert "[b]dora" in shown


@pytest.mark.parametrize("kind", [Progress, Lines, LiveBar])
def test_finish_and_note_do_without_a_start(kind):
    progress = kind()
    progress.note("[red]as it is[/red]")
    progress.update(1, {})
    progress.finish()


def test_the_bar_shows_text_as_it_is(capsys):
    progress = LiveBar()
    progress.start(2, "steps")
    progress.note("prompt [bold]x[/bold] :smile:")
    progress.update(1, {"reward_mean": 0.5})
    progress.start(4, "rows")
    progress.finish()
    assert "prompt [bold]x[/bold] :smile:" in capsys.readouterr().err
