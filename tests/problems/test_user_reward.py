import hashlib
import json
import math
import os
import subprocess
import sys
import textwrap
import time

import pytest

from evolora.errors import RewardError
from evolora.problems import load_reward
from evolora.problems.user_reward import CallableReward, FileReward
from evolora.tasks import Message

PROMPTS, COMPLETIONS, ANSWERS = ["p", "q"], ["x", "y"], ["x", "z"]
COLUMNS = {"answer": ANSWERS, "family": ["f", "g"], "level": [1, 2]}

BROKEN = [
    ("return [1 / 0]", "raised", r"ZeroDivisionError: division by zero \(line 2\)"),
    ("raise SystemExit(3)", "raised", "SystemExit: 3"),
    ("return None", "none", "it returned None"),
    ("return [1.0]", "length", "it returned 1 rewards for 2 completions"),
    ("return 1.0", "not_a_list", "it returned float, not a list of numbers"),
    ("return [None, None]", "none", "it returned None as a reward"),
    ("return [float('nan')] * 2", "nan", "nan as a reward"),
    ("return [float('inf')] * 2", "infinite", "inf as a reward"),
    ("return [1e300, -1e300]", "infinite", r"-1e\+300 as a reward"),
    ("return [10**400] * 2", "infinite", "0000 as a reward"),
    ("return {'x': 1.0, 'y': 0.0}", "not_a_list", "it returned dict, not a list"),
    ("return {1.0, 0.0}", "not_a_list", "it returned set, not a list"),
    ("return frozenset([1.0, 0.0])", "not_a_list", "it returned frozenset, not a list"),
    ("return b'12'", "not_a_list", "it returned bytes, not a list"),
    ("import itertools; return itertools.repeat(1.0)", "length", "it returned more than 2 rewards for 2"),
    ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()", "raised", "^Odd( |$)"),
    ("return ['1', '2']", "not_a_number", "'2' as a reward"),
    ("return [1j, [1]]", "not_a_number", "as a reward"),
    ("import os; os._exit(3)", "crashed", "its process ended"),
]


@pytest.fixture
def make(tmp_path):
    made = []

    def maker(body, head="def f(prompts, completions, **columns):", **options):
        path = tmp_path / f"reward{len(made)}.py"
        path.write_text(head + "\n" + textwrap.indent(textwrap.dedent(body), "    ") + "\n")
        made.append(FileReward(path, "f", **options))
        return made[-1]

    yield maker
    for reward in made:
        reward.close()


def call(reward):
    return reward(PROMPTS, COMPLETIONS, ANSWERS, COLUMNS)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")")[1].split()[0] != "Z"


def gone_soon(pid):
    for _ in range(200):
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_it_gets_trl_keywords_and_every_column(make):
    reward = make(
        """
        assert sorted(columns) == ["answer", "family", "level"], columns
        return [(c == a) + n for c, a, n in zip(completions, columns["answer"], columns["level"])]
        """
    )
    assert call(reward) == [2.0, 2.0]
    assert not reward.failures


def test_a_function_without_keywords_gets_only_what_it_names(make):
    assert call(make("return level", "def f(completions, level):")) == [1.0, 2.0]


def test_a_chat_arrives_as_in_trl(make):
    reward = make(
        """
        assert completions == [[{"role": "assistant", "content": "x"}]], completions
        return [len(prompts[0])]
        """
    )
    chat = (Message("system", "s"), Message("user", "u"))
    assert reward([chat], ["x"], ["a"], {}) == [2.0]


def test_it_keeps_its_state_and_its_own_folder_on_the_path(make, tmp_path):
    (tmp_path / "beside_the_reward.py").write_text("value = 40")
    reward = make(
        """
        count.append(1)
        return [beside_the_reward.value + len(count)] * 2
        """,
        "import beside_the_reward\ncount = []\ndef f(**columns):",
    )
    assert [call(reward), call(reward)] == [[41.0, 41.0], [42.0, 42.0]]


def test_what_it_prints_does_not_reach_the_standard_output(make, capfd):
    assert call(make("print('noise', flush=True); return [0, 1]")) == [0.0, 1.0]
    assert capfd.readouterr().out == ""


def test_it_cannot_read_the_requests(make):
    reward = make(
        "import sys; assert sys.stdin.read() == ''; import os; assert os.read(0, 1) == b''; return [1, 1]"
    )
    assert [call(reward), call(reward)] == [[1.0, 1.0]] * 2


@pytest.mark.parametrize(("body", "kind", "message"), BROKEN)
def test_a_failure_is_nan_and_counted_by_kind_never_zero(make, body, kind, message):
    reward = make(body)
    for calls in (1, 2):
        assert all(map(math.isnan, call(reward)))
        assert reward.failures == {kind: 2 * calls}
    import re

    assert re.search(message, reward.error)
    assert "\n" not in reward.error


@pytest.mark.parametrize(("body", "kind", "message"), [b for b in BROKEN if "exit" not in b[0].lower()])
def test_a_callable_in_this_process_fails_alike(body, kind, message):
    space = {}
    exec("def f(prompts, completions, **columns):\n    " + body, space)
    reward = load_reward(space["f"])
    assert isinstance(reward, CallableReward)
    assert reward.name == "f"
    assert reward.fingerprint.endswith("f")
    assert all(map(math.isnan, call(reward)))
    assert reward.failures == {kind: 2}


def test_only_the_entries_without_a_number_are_lost(make):
    first, second = call(make("return [None, 2]"))
    assert math.isnan(first)
    assert second == 2


def test_numbers_of_other_libraries_count(make):
    assert call(make("import numpy; return numpy.array([1, 2.5], dtype='float32')")) == [1.0, 2.5]


def test_a_hang_is_cut_and_everything_it_started_is_gone(make, tmp_path):
    reward = make(
        f"""
        import os, subprocess
        if completions[0] == "hang":
            child = subprocess.Popen(["sleep", "600"])
            open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
            while True:
                pass
        return [1.0] * len(completions)
        """,
        timeout=1.0,
    )
    start = time.monotonic()
    assert all(map(math.isnan, reward(["p"], ["hang"], ["a"], {})))
    assert time.monotonic() - start < 5
    assert reward.failures == {"timeout": 1}
    assert reward.error == "it took more than 1 s"
    assert all(gone_soon(int(pid)) for pid in (tmp_path / "pids").read_text().split())
    assert reward(["p"], ["go on"], ["a"], {}) == [1.0]


def test_closing_ends_the_process_after_its_exit_handlers(make, tmp_path):
    leave = f"import atexit\natexit.register(lambda: open({str(tmp_path / 'left')!r}, 'w').close())\n"
    reward = make("import os; return [os.getpid()] * 2", leave + "def f(**columns):")
    pid = int(call(reward)[0])
    reward.close()
    assert gone_soon(pid)
    assert (tmp_path / "left").exists()
    assert int(call(reward)[0]) != pid


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_the_process_ends_with_its_parent_however_that_ends(tmp_path, end):
    (tmp_path / "r.py").write_text(
        "import os, subprocess\n"
        "def f(**columns):\n"
        "    return [os.getpid(), subprocess.Popen(['sleep', '600'], stdout=2).pid]\n"
    )
    script = (
        "import os\nfrom evolora.problems import load_reward\n"
        f"r = load_reward({str(tmp_path / 'r.py') + ':f'!r})\n"
        f"print(*map(int, r(['p', 'q'], ['x', 'y'], ['', ''], {{}})), flush=True)\n{end}\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    assert all(gone_soon(pid) for pid in pids)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:", r"importing it raised SyntaxError: .*line 1"),
        ("raise ValueError('no key\\nat all')", r"importing it raised ValueError: no key at all \(line 1\)"),
        ("import not_a_module_at_all", "ModuleNotFoundError: No module named 'not_a_module_at_all'"),
        ("def g(): pass", "it has no function f; there are g"),
        ("f = 3", "it has no function f; there are none"),
        ("import os; os._exit(1)", "importing it ended the process"),
        ("import time; time.sleep(600)", "importing it took more than 1 s"),
    ],
)
def test_a_file_that_does_not_load_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(RewardError, match=message) as caught:
        FileReward(path, "f", load_timeout=1.0)
    assert "bad.py:f" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_that_json_cannot_hold_is_refused(make):
    with pytest.raises(RewardError, match="a column cannot be sent to the function"):
        make("return [1, 1]")(PROMPTS, COMPLETIONS, ANSWERS, {"odd": [object(), 1]})


def test_the_largest_float32_is_still_a_reward(make):
    assert call(make("return [3.4028234663852886e38, -3.4028234663852886e38]")) == [
        3.4028234663852886e38,
        -3.4028234663852886e38,
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_that_comes_back_from_the_function_answers_nothing(make):
    reward = make(
        """
        import os
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return [float(len(c)) + (100 if child == 0 else 0) for c in completions]
        """
    )
    for said in (["a"], ["aa", "b"], ["aaa"]):
        assert reward(["p"] * len(said), said, ["a"] * len(said), {}) == [float(len(c)) for c in said]
    assert not reward.failures


def test_replies_to_other_requests_and_noise_are_passed_over(make):
    reward = make("return [3.0]")
    stale = {"values": [7.0], "kinds": {}, "error": None}
    for line in ("noise", "[]", "[" * 100_000, json.dumps(stale), json.dumps(stale | {"id": 0})):
        reward._worker._replies.put(line + "\n")
    assert reward(["p"], ["x"], ["a"], {}) == [3.0]


def test_a_reply_with_another_number_of_values_is_a_failure(make, monkeypatch):
    reward = make("return [1.0, 2.0]")
    monkeypatch.setattr(type(reward._worker), "ask", lambda *_: {"values": [1.0], "kinds": {}, "error": None})
    assert all(map(math.isnan, call(reward)))
    assert reward.failures == {"crashed": 2}


def test_the_fingerprint_of_a_file_changes_with_its_bytes_and_a_built_in_one_is_its_name(tmp_path):
    path, found = tmp_path / "r.py", []
    for text in ("def f(completions): return [1] * 2", "def f(completions): return [2] * 2"):
        path.write_text(text)
        for _ in range(2):
            reward = load_reward(f"{path}:f")
            found.append(reward.fingerprint)
            reward.close()
        assert found[-1] == f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path}:f"
    assert found[0] == found[1] != found[2] == found[3]
    assert load_reward("regex:(x)").fingerprint == "regex:(x)"
    assert load_reward(call).fingerprint == f"{__name__}.call"
