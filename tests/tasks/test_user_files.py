import json

import pytest

from evolora.errors import TaskError
from evolora.tasks import Message, load_task


@pytest.fixture
def write(tmp_path):
    def writer(*rows, name="data.jsonl", encoding="utf-8", end="\n"):
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_bytes((end.join(lines) + end).encode(encoding))
        return path

    return writer


def rows(count=30, **more):
    return [{"prompt": f"Q{i}", "answer": f"A{i}", **more} for i in range(count)]


def all_of(task):
    return [*task.train, *task.validation, *task.test]


def test_prompt_and_answer_are_joined_by_a_space_and_this_is_said(write):
    task = load_task(str(write({"prompt": "Q:", "answer": "4"}, {"prompt": "Q ", "answer": "5"}, *rows())))
    by_prompt = {e.prompt: e.answer for e in all_of(task)}
    assert by_prompt["Q:"] == " 4"
    assert by_prompt["Q "] == "5"
    assert "a space was put between prompt and answer in 31 rows" in task.warnings[0]


def test_no_space_is_put_beside_a_script_without_spaces(write):
    task = load_task(write({"prompt": "首都は", "answer": "東京"}, *rows()))
    assert {e.prompt: e.answer for e in all_of(task)}["首都は"] == "東京"


def test_a_completion_is_taken_letter_for_letter(write):
    task = load_task(write(*[{"prompt": f"p{i}", "completion": f"c{i}\n"} for i in range(9)]))
    assert {e.prompt: e.answer for e in all_of(task)} == {f"p{i}": f"c{i}\n" for i in range(9)}
    assert task.warnings == ()


def test_the_last_assistant_message_is_the_answer(write):
    def chat(i):
        return [
            {"role": "system", "content": "be short"},
            {"role": "user", "content": f"hi {i}"},
            {"role": "assistant", "content": "hello"},
        ]

    task = load_task(write(*[{"messages": chat(i)} for i in range(5)]))
    example = next(e for e in all_of(task) if "hi 3" in e.text)
    assert example.prompt == (Message("system", "be short"), Message("user", "hi 3"))
    assert example.answer == "hello"


def test_trl_conversational_prompts_and_completions_are_read(write):
    def row(i):
        return {
            "prompt": [{"role": "user", "content": f"hi {i}"}],
            "completion": [{"role": "assistant", "content": "hello"}],
        }

    task = load_task(
        write(*[row(i) for i in range(4)], {"prompt": [{"role": "user", "content": "x"}], "answer": "y"})
    )
    assert {e.answer for e in all_of(task)} == {"hello", "y"}
    assert all(isinstance(e.prompt, tuple) for e in all_of(task))


def test_other_columns_and_the_family_are_kept(write):
    task = load_task(write(*rows(family="math", tests=["a", 1], level=3)))
    assert task.families == ("math",)
    assert all(e.columns == {"tests": ["a", 1], "level": 3} for e in all_of(task))


def test_a_byte_order_mark_crlf_and_blank_lines_are_harmless(write):
    path = write(*rows(5), "", "  ", encoding="utf-8-sig", end="\r\n")
    assert len(all_of(load_task(path))) == 5


def test_unicode_line_separators_inside_a_text_do_not_break_the_line(write):
    task = load_task(write(*rows(5), {"prompt": "a\u2028b", "answer": "c"}))
    assert any("\u2028" in e.prompt for e in all_of(task))


def test_escaped_pairs_of_surrogates_are_characters(write):
    task = load_task(write(*rows(5), r'{"prompt": "\ud83d\ude00", "answer": "c"}'))
    assert any(e.prompt == "\U0001f600" for e in all_of(task))


def test_named_splits_are_kept_with_their_usual_aliases(write):
    names = ["train", "val", "test", "train", "dev", "train"]
    task = load_task(write(*[{"prompt": f"p{i}", "answer": "a", "split": s} for i, s in enumerate(names)]))
    assert sorted(e.prompt for e in task.train) == ["p0", "p3", "p5"]
    assert sorted(e.prompt for e in task.validation) == ["p1", "p4"]
    assert [e.prompt for e in task.test] == ["p2"]


def test_a_split_that_no_row_names_is_made_out_of_train(write):
    given = [{"prompt": f"p{i}", "answer": "a", "split": "test" if i < 10 else "train"} for i in range(60)]
    task = load_task(write(*given))
    assert {e.prompt for e in task.test} == {f"p{i}" for i in range(10)}
    assert len(task.train) + len(task.validation) == 50
    assert 5 <= len(task.validation) <= 20


def test_made_splits_depend_on_neither_seed_nor_order_nor_other_rows(write):
    one = load_task(write(*rows(60)), seed=0)
    two = load_task(write(*reversed(rows(80)), name="other.jsonl"), seed=9)
    for split in ("train", "validation", "test"):
        assert {e.prompt for e in one.split(split)} <= {e.prompt for e in two.split(split)}


def test_the_seed_chooses_where_fewer_are_asked_for(write):
    path = write(*rows(60))
    chosen = [{e.prompt for e in load_task(path, seed, train=10).train} for seed in (0, 1)]
    assert chosen[0] != chosen[1]
    with pytest.raises(TaskError, match=r"data\.jsonl: 999 train prompts asked for"):
        load_task(path, train=999)


def test_repeated_prompts_are_left_out_and_counted(write):
    extra = [{"prompt": "Q1", "answer": "A1"}, {"prompt": "Q2", "answer": "other"}]
    task = load_task(write(*rows(), *extra))
    assert len(all_of(task)) == 30
    assert (
        "2 rows repeat a prompt of their split and were left out, 1 of them with another answer"
        in task.warnings[0]
    )
    assert {e.prompt: e.answer for e in all_of(task)}["Q2"] == " A2"


def test_an_empty_answer_is_allowed_for_rewards_that_need_none(write):
    task = load_task(write(*[{"prompt": f"p{i}", "answer": ""} for i in range(5)]))
    assert {e.answer for e in all_of(task)} == {""}


def test_long_answers_get_room_and_not_without_bound(write):
    assert load_task(write(*rows(5))).max_new_tokens <= 16
    long = [{"prompt": f"p{i}", "answer": "word " * 1000} for i in range(5)]
    assert load_task(write(*long, name="long.jsonl")).max_new_tokens == 512


BAD_LINES = [
    ("{oops", r"data\.jsonl:4: not JSON .*column 2.*; write one JSON object a line"),
    ('{"prompt": "a", "answer": NaN}', "NaN is not JSON"),
    ("[1, 2]", "the line is a list, not an object"),
    ('"text"', "the line is a text, not an object"),
    ('{"prompt": "a"}', r':4: the keys are "prompt"; give "prompt" and "answer"'),
    ('{"answer": "a"}', 'the keys are "answer"'),
    ("{}", "the keys are none"),
    ('{"prompt": 3, "answer": "a"}', '"prompt" is a number, not text'),
    ('{"prompt": "a", "answer": 4}', '"answer" is a number, not text; put it in quotation marks'),
    ('{"prompt": "a", "answer": null}', '"answer" is null, not text'),
    ('{"prompt": " ", "answer": "a"}', "the prompt is empty"),
    ('{"prompt": "a", "answer": "b", "split": "trian"}', r':4: unknown split "trian"; use one of train'),
    ('{"prompt": "a", "answer": "b", "split": ["x"]}', "unknown split"),
    ('{"prompt": "a", "answer": "b", "split": "test"}', r'this row has a "split", \S+:1 has none'),
    ('{"prompt": "a", "answer": "b", "family": 3}', '"family" is a number'),
    ('{"prompt": "a", "answer": "b", "prompts": 3}', 'a column may not be named "prompts"'),
    ('{"messages": []}', '"messages" is not a list of messages'),
    ('{"messages": [{"role": "user", "content": "a"}]}', 'the last message is from "user"'),
    ('{"messages": [{"role": "assistant", "content": "a"}]}', "the prompt is empty"),
    ('{"messages": [{"role": "user", "content": [1]}]}', r"messages\[0\] has no text"),
    ('{"prompt": [], "answer": "a"}', '"prompt" is not a list of messages'),
    (
        '{"prompt": "a", "completion": [{"role": "a", "content": "b"}, {"role": "a", "content": "b"}]}',
        "more than one",
    ),
    ("[" * 100_000, "not JSON"),
    (r'{"prompt": "a\ud800", "answer": "b"}', r":4: \\ud800 is half of a surrogate pair"),
    (r'{"prompt": "a", "answer": "b\udc00c"}', r":4: \\udc00 is half of a surrogate pair"),
    (r'{"prompt": "a", "completion": "\uDE00\uD83D"}', r":4: \\ude00 is half"),
    (
        r'{"messages": [{"role": "user", "content": "\ud83d"}, {"role": "assistant", "content": "b"}]}',
        "half of a",
    ),
    (r'{"prompt": "a", "answer": "b", "level": ["\ud800"]}', "half of a surrogate"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_a_bad_line_is_named_with_its_mend(write, line, message):
    with pytest.raises(TaskError, match=message) as caught:
        load_task(write(*rows(3), line))
    assert "data.jsonl:4" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.mend


def test_a_prompt_in_two_splits_is_named_with_both_places(write):
    path = write(
        {"prompt": "same", "answer": "a", "split": "train"},
        {"prompt": "same", "answer": "a", "split": "test"},
    )
    with pytest.raises(
        TaskError, match=r':2: the prompt "same" stands in test, and in train at \S+data\.jsonl:1'
    ):
        load_task(path)


def test_a_file_without_training_rows_is_refused(write):
    with pytest.raises(TaskError, match='no row has the split "train"'):
        load_task(write(*[{"prompt": f"p{i}", "answer": "a", "split": "test"} for i in range(5)]))


def test_too_few_rows_for_three_splits_are_refused_with_the_file(write):
    with pytest.raises(TaskError, match=r"data\.jsonl: 2 different prompts cannot fill"):
        load_task(write(*rows(2)))


def test_one_list_over_the_whole_file_gets_its_own_hint(write):
    with pytest.raises(TaskError, match="not one list over the whole file"):
        load_task(write("[", '{"prompt": "a", "answer": "b"}', "]", name="data.json"))


def test_an_empty_missing_or_wrong_file_is_refused(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"prompt": "a", "answer": "b"}\n{"prompt": "caf\xe9", "answer": "b"}\n')
    for path, message in [
        (empty, "the file is empty"),
        (latin, r"latin\.jsonl:2: not UTF-8 text"),
        (tmp_path / "none.jsonl", "there is no such file"),
        (tmp_path, "this is a folder"),
    ]:
        with pytest.raises(TaskError, match=message):
            load_task(path)
