import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from evolora.adapters import Adapter, Factors, ModuleSpec
from evolora.errors import ConfigError, ProtocolError, RewardError, TaskError
from evolora.problems import Problem, difference, evaluate, load_reward
from evolora.problems.problem import columns_of
from evolora.tasks import Example, Message, Task


class FakeEngine:
    """Member i answers right on the prompts whose number is below its skill."""

    def __init__(self, skills=(2, 5)):
        self.skills, self.calls = skills, []
        self.ledger = SimpleNamespace(evaluations=0)
        self.base = SimpleNamespace(
            modules=lambda: {"layer": ModuleSpec(4, 4)},
            text=SimpleNamespace(encode=lambda texts, *, starts: [[*text] for text in texts]),
            max_length=None,
            render=lambda messages: "|".join(f"{m['role']}={m['content']}" for m in messages),
        )

    def _right(self, members, prompts):
        skills = self.skills if members is not None else (0,)
        return [[int(p.split()[-1]) < skill for p in prompts] for skill in skills]

    def score(self, members, prompts, answers, *, stop=None):
        self.stop = stop
        self.calls.append(("score", prompts, answers))
        exact = torch.tensor(self._right(members, prompts))
        tokens = torch.tensor([len(a) for a in answers])
        return SimpleNamespace(
            log_likelihood=torch.where(exact, -1.0, -8.0) * tokens, exact=exact, tokens=tokens
        )

    def generate(self, members, prompts, *, max_new_tokens=32, temperature=0.0, top_p=1.0, seed=0, stop=None):
        self.stop = stop
        self.calls.append(("generate", prompts, max_new_tokens, temperature, seed))
        return [["yes " if right else "no" for right in row] for row in self._right(members, prompts)]


def examples(first, last, answer=" yes"):
    return tuple(
        Example(f"p {i}", answer, "even" if i % 2 == 0 else "odd", {"i": i}) for i in range(first, last)
    )


def task(**more):
    return Task(
        "mine",
        **{
            "train": examples(0, 6),
            "validation": examples(6, 8),
            "test": examples(8, 10),
            "max_new_tokens": 5,
            **more,
        },
    )


def adapter(name):
    return Adapter({"layer": Factors(torch.zeros(1, 4), torch.zeros(4, 1))}, name=name)


MEMBERS = [adapter("one"), adapter("two")]


def test_exact_is_read_off_one_teacher_forced_forward():
    engine = FakeEngine()
    problem = Problem(engine, task(), load_reward("exact"), batch_size=6)
    rewards = problem.evaluate(MEMBERS, 0)
    order = [e.columns["i"] for e in problem.batch(0)]
    assert rewards.values.dtype == torch.float32
    assert rewards.values.tolist() == [[float(i < 2) for i in order], [float(i < 5) for i in order]]
    assert rewards.failed == {}
    assert [call[0] for call in engine.calls] == ["score"]


@pytest.mark.parametrize("options", [{"teacher_forced": False}, {"temperature": 0.7}])
def test_exact_by_decoding_gives_the_same_rewards(options):
    engine = FakeEngine()
    forced = Problem(engine, task(), load_reward("exact"), batch_size=6).evaluate(MEMBERS, 0)
    decoded = Problem(engine, task(), load_reward("exact"), batch_size=6, **options).evaluate(MEMBERS, 0)
    assert torch.equal(forced.values, decoded.values)
    assert engine.calls[-1][0] == "generate"
    assert engine.calls[-1][2:4] == (len(" yes") + 3, options.get("temperature", 0.0))


def test_logprob_is_the_mean_over_answer_tokens():
    rewards = Problem(FakeEngine(), task(), load_reward("logprob"), batch_size=6).evaluate(MEMBERS, 0)
    assert set(rewards.values.flatten().tolist()) == {-1.0, -8.0}


def test_every_step_samples_with_a_seed_of_its_own_and_repeats_it():
    engine = FakeEngine()
    problems = [Problem(engine, task(), load_reward("contains"), seed=s, temperature=1.0) for s in (0, 1)]
    for problem in problems:
        for step in (0, 1, 0):
            problem.evaluate(None, step)
    seeds = [call[-1] for call in engine.calls]
    assert seeds[0] == seeds[2]
    assert seeds[3] == seeds[5]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_batches_are_a_pure_function_of_step_and_seed():
    one, two = (Problem(FakeEngine(), task(), load_reward("exact"), batch_size=4, seed=3) for _ in range(2))
    assert [one.batch(s) for s in (5, 0)] == [two.batch(s) for s in (5, 0)]
    assert one.split("validation") == examples(6, 8)


def test_the_template_is_every_linear_layer_unless_given():
    engine = FakeEngine()
    assert Problem(engine, task(), load_reward("exact")).template == {"layer": ModuleSpec(4, 4)}
    mine = {"other": ModuleSpec(2, 2)}
    assert Problem(engine, task(), load_reward("exact"), template=mine).template == mine


def test_chats_are_rendered_by_the_base_and_judged_as_chats():
    seen = []

    def reward(prompts, completions, **columns):
        seen.append((prompts, completions, columns))
        return [1.0] * len(prompts)

    engine = FakeEngine((1, 1))
    chat = (Message("system", "s"), Message("user", "u 0"))
    mine = task(train=(Example(chat, "yes", columns={"level": 3}),))
    rewards = Problem(engine, mine, load_reward(reward), batch_size=1).evaluate(MEMBERS, 0)
    assert engine.calls[0][1] == ["system=s|user=u 0"]
    prompts, completions, columns = seen[0]
    assert prompts == [[{"role": "system", "content": "s"}, {"role": "user", "content": "u 0"}]]
    assert completions == [[{"role": "assistant", "content": "yes "}]]
    assert columns == {"level": [3], "answer": ["yes"], "family": ["default"]}
    assert len(seen) == rewards.values.shape[0] == 2


def test_columns_that_some_examples_lack_are_none():
    columns = columns_of([Example("a", "1", columns={"x": 1}), Example("b", "2", "f", {"y": 2})])
    assert columns == {"x": [1, None], "y": [None, 2], "answer": ["1", "2"], "family": ["default", "f"]}


def test_a_member_whose_call_raises_is_nan_and_the_others_are_not():
    def reward(prompts, completions, **columns):
        if completions.count("no") > 2:
            raise ValueError("too many")
        return [1.0] * len(completions)

    problem = Problem(FakeEngine(), task(), load_reward(reward), batch_size=6)
    for step in (0, 1):
        rewards = problem.evaluate(MEMBERS, step)
        assert rewards.values[0].isnan().all()
        assert (rewards.values[1] == 1).all()
        assert rewards.failed == {"raised": 6}
        assert "ValueError: too many" in rewards.error
        rewards.require_some()


def test_where_every_call_fails_the_exception_is_quoted_in_one_line():
    def reward(prompts, completions, **columns):
        raise KeyError("no such\ncolumn")

    rewards = Problem(FakeEngine(), task(), load_reward(reward), batch_size=6).evaluate(MEMBERS, 0)
    with pytest.raises(
        RewardError, match=r"mine\.py: every call failed \(raised 12\); the last: KeyError: "
    ) as caught:
        rewards.require_some("mine.py")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("reward", "answer"), [("exact", " "), ("numeric", "none"), ("logprob", ""), ("regex:(x)", "")]
)
def test_an_answer_that_cannot_be_judged_against_stops_before_anything_runs(reward, answer):
    mine = task(train=examples(0, 6, "12"), validation=examples(6, 8, answer))
    with pytest.raises(RewardError, match=r'mine \(validation\): .* the answer to "p 6"'):
        Problem(FakeEngine(), mine, load_reward(reward))


def test_a_function_of_ones_own_needs_no_answers():
    mine = task(train=examples(0, 6, ""), validation=examples(6, 8, ""), test=examples(8, 10, ""))
    rewards = Problem(
        FakeEngine(), mine, load_reward(lambda completions: [len(c) for c in completions])
    ).evaluate(None, 0)
    assert rewards.values.shape == (1, 32)
    assert (rewards.values == 2).all()


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"max_new_tokens": 0}, {"temperature": -1.0}, {"temperature": math.nan}]
)
def test_an_option_out_of_range_is_refused_by_name(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Problem(FakeEngine(), task(), load_reward("exact"), **options)


def test_an_evaluation_decodes_and_reports_each_family():
    engine = FakeEngine((10, 13))
    one, two = evaluate(engine, MEMBERS, examples(0, 20), load_reward("exact"), 7)
    assert (one.name, two.name) == ("one", "two")
    assert one.accuracy == 0.5
    assert one.correct == [1.0] * 10 + [0.0] * 10
    assert one.ci[0] < 0.5 < one.ci[1]
    assert set(two.families) == {"even", "odd"}
    assert two.families["even"][0] == 0.7
    assert two.families["odd"].n == 10
    assert "failed" not in one.as_dict()
    assert one.completions == ["yes "] * 10 + ["no"] * 10
    assert engine.calls == [("generate", [f"p {i}" for i in range(20)], 7, 0.0, 0)]


def test_an_evaluation_can_group_by_a_column():
    (base,) = evaluate(FakeEngine(), None, examples(0, 3), load_reward("exact"), 4, by="i")
    assert base.name == "base"
    assert list(base.families) == ["0", "1", "2"]
    with pytest.raises(TaskError, match='no column "level"; group by family or by one of i'):
        evaluate(FakeEngine(), None, examples(0, 3), load_reward("exact"), 4, by="level")


def test_the_difference_is_adapted_minus_base_paired_by_prompt():
    one, two = evaluate(FakeEngine((10, 40)), MEMBERS, examples(0, 50), load_reward("exact"), 4)
    found = difference(one, two)
    assert found["value"] == pytest.approx(0.6)
    assert 0.4 < found["ci"][0] < 0.6 < found["ci"][1] < 0.8
    assert found["p"] < 0.001
    assert difference(one, one)["p"] == 1
    with pytest.raises(ProtocolError, match="cannot be paired"):
        difference(one, evaluate(FakeEngine(), None, examples(0, 3), load_reward("exact"), 4)[0])


def test_prompts_that_could_not_be_judged_leave_the_mean_and_are_counted():
    def reward(prompts, completions, **columns):
        return [None if p == "p 0" else float(c == "yes ") for p, c in zip(prompts, completions, strict=True)]

    one, two = evaluate(FakeEngine((2, 4)), MEMBERS, examples(0, 4), load_reward(reward), 4)
    assert one.n == 3
    assert one.accuracy == pytest.approx(1 / 3)
    assert math.isnan(one.correct[0])
    assert one.failed == {"none": 1}
    assert (one.as_dict()["n"], one.as_dict()["failed"]) == (3, {"none": 1})
    assert difference(one, two)["value"] == pytest.approx(2 / 3)


def test_an_evaluation_without_any_judged_prompt_is_plain_data_without_nan():
    (base,) = evaluate(FakeEngine(), None, examples(0, 3), load_reward(lambda prompts: None), 4)
    assert base.as_dict()["accuracy"] is None
    assert base.as_dict()["ci"] == [None, None]
    assert base.as_dict()["n"] == 0
    assert base.as_dict()["failed"] == {"none": 3}
    assert difference(base, base) == {"value": None, "ci": [None, None], "p": 1.0}


def test_a_reward_of_scores_is_evaluated_by_scores_and_still_shows_texts():
    engine = FakeEngine()
    one, two = evaluate(engine, MEMBERS, examples(0, 5), load_reward("logprob"), 4)
    assert one.correct == [-1, -1, -8, -8, -8]
    assert two.completions == ["yes "] * 5
    assert [call[0] for call in engine.calls] == ["generate", "score"]


def test_nothing_to_evaluate_on_is_said():
    with pytest.raises(TaskError, match="no prompt"):
        evaluate(FakeEngine(), None, (), load_reward("exact"), 4)
    with pytest.raises(RewardError, match="cannot judge"):
        evaluate(FakeEngine(), None, examples(0, 2, ""), load_reward("exact"), 4)


@pytest.mark.parametrize("teacher_forced", [True, False])
def test_what_ends_an_answer_reaches_the_engine(teacher_forced):
    engine = FakeEngine()
    Problem(
        engine, replace(task(), stop="\n"), load_reward("exact"), 2, teacher_forced=teacher_forced
    ).evaluate(None, 0)
    assert engine.stop == "\n"
