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
