"""A problem: what a method is asked to improve. Base, task, reward and the minibatch of each step."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evolora.adapters import Copies
from evolora.errors import ConfigError, RewardError
from evolora.problems.answers import answer_length, refuse_unsayable, render
from evolora.problems.reward import Columns, Reward
from evolora.problems.rollouts import Rollouts
from evolora.problems.schedule import batch
from evolora.tasks.task import SPLITS, Example, Task, excerpt

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.adapters import Adapter, ModuleSpec
    from evolora.engine import Engine
    from evolora.engine.engine import Members


@dataclass(frozen=True, eq=False)
class Rewards:
    """What a population got.

    Attributes:
        values: ``[N, P]`` float32, higher is better, NaN where there is no value.
        failed: kind to number of NaNs.
        error: the last failure in one line, if any.
    """

    values: Tensor
    failed: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None

    def require_some(self, where: object = None) -> None:
        """Stops where nothing at all could be judged: the reward does not work.

        Raises:
            RewardError: every value is NaN; the last failure is quoted.
        """
        if self.values.numel() and bool(self.values.isnan().all()):
            raise no_rewards(self.failed, self.error, where)


class Problem:
    """Improves members of a population on the training prompts of a task.

    Args:
        engine: runs the base.
        task: what is asked.
        reward: what is rewarded.
        batch_size: prompts a step, the same for every member.
        seed: of the minibatches and of sampling.
        max_new_tokens: how long completions may become; by default every answer fits (``answer_length``).
        temperature: 0 decodes greedily.
        template: the modules to adapt; every linear layer of the base by default.
        teacher_forced: let rewards that can (``exact``) be read off one teacher-forced forward instead of
            decoding, at temperature 0. Much cheaper; counts only the answer's canonical tokens with the end
            after them.

    Raises:
        ConfigError: a batch size, length or temperature out of range.
        RewardError: an answer of the task that the reward cannot judge against; the prompt is named.
    """

    def __init__(
        self,
        engine: Engine,
        task: Task,
        reward: Reward,
        batch_size: int = 32,
        seed: int = 0,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        template: Mapping[str, ModuleSpec] | None = None,
        *,
        teacher_forced: bool = True,
    ) -> None:
        if max_new_tokens is None:
            max_new_tokens = answer_length(engine.base, task)
        self.max_new_tokens = max_new_tokens
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("max_new_tokens", self.max_new_tokens, 1),
            ("temperature", temperature, 0),
        ):
            if not value >= least:
                raise ConfigError(f"{name} is {value}", mend=f"it must be at least {least}")
        for split in SPLITS:
            refuse_unusable(reward, task.split(split), f"{task.name} ({split})")
        self.engine, self.task, self.reward = engine, task, reward
        self.batch_size, self.seed, self.temperature = batch_size, seed, temperature
        self.template = dict(engine.base.modules()) if template is None else dict(template)
        self.scored = reward.needs == "score" or (teacher_forced and reward.can_score and temperature == 0)

    def split(self, name: str) -> tuple[Example, ...]:
        """The examples of ``train``, ``validation`` or ``test``."""
        return self.task.split(name)

    def batch(self, step: int) -> list[Example]:
        """The training examples of a step; a pure function of the step and the seed."""
        train = self.task.train
        return [train[i] for i in batch(len(train), self.batch_size, step, self.seed)]

    def check_texts(self, *, trains: bool = False, samples: bool = False) -> None:
        """Tokenises every prompt that will be run, so that none stops a search half way.

        Args:
            trains: the answers are trained on, whatever the reward.
            samples: completions are sampled and judged, whatever the reward could be read off.

        Raises:
            ConfigError: completions are to be judged by a reward that needs scores.
            InputError: an empty prompt, one too long for the model with its answer, or a ``stop`` that the
                model cannot be scored on.
            TaskError: an answer that scores would find right, and that no completion can equal.
        """
        if samples and self.reward.needs == "score":
            raise ConfigError(
                f"the reward {self.reward.name} is read off scores and cannot judge sampled completions",
                mend="choose a reward that judges texts (exact, numeric, contains, a function of yours), or "
                "another method",
            )
        text = self.engine.base.text
        for split in SPLITS:
            examples = self.split(split)
            prompts = render(self.engine.base, examples)
            text.prompts(prompts, new_tokens=self.max_new_tokens)
            if self.scored or trains:
                pairs = text.pairs(prompts, [e.answer for e in examples], self.task.stop)
                if self.scored and self.reward.needs == "completion":
                    refuse_unsayable(
                        self.engine.base,
                        examples,
                        [answer for _, answer in pairs],
                        stop=self.task.stop,
                        most=self.max_new_tokens,
                        where=f"{self.task.name} ({split})",
                    )

    def evaluate(self, members: Members, step: int) -> Rewards:
        """Rewards every member on the minibatch of a step.

        Args:
            members: None (the base), an adapter, a list of adapters, or a population of N.
            step: chooses the P prompts, and the samples where the temperature is above 0.

        Raises:
            AdapterError: a member does not fit the base.
        """
        return self.judge(members, self.batch(step), seed=_sampling_seed(self.seed, step))

    def judge(self, members: Members, examples: Sequence[Example], *, seed: int = 0) -> Rewards:
        """Rewards every member on some examples, as a step does.

        Args:
            members: as for ``evaluate``.
            examples: P of them.
            seed: of the samples, where the temperature is above 0.
        """
        before = Counter(self.reward.failures)
        prompts = render(self.engine.base, examples)
        if self.scored:
            answers = [e.answer for e in examples]
            scores = self.engine.score(members, prompts, answers, stop=self.task.stop)
            values = self.reward.from_scores(scores).float()
        else:
            completions = self.engine.generate(
                members,
                prompts,
                max_new_tokens=self.max_new_tokens,
                temperature=self.temperature,
                seed=seed,
                stop=self.task.stop,
            )
            values = judge(self.reward, examples, completions)
            self.engine.ledger.evaluations += values.numel()
        failed = dict(Counter(self.reward.failures) - before)
        return Rewards(values, failed, self.reward.error if failed else None)

    def rollout(self, policy: Adapter, samples: int, step: int, temperature: float = 1.0) -> Rollouts:
        """Samples completions of the minibatch of a step and judges their texts.

        Args:
            policy: a plain LoRA.
            samples: G, completions of each prompt.
            step: chooses the P prompts and the samples.
            temperature: above 0; the problem's own is that of greedy or sampled members.

        Raises:
            ProtocolError: the reward needs scores (``check_texts`` says so before a search).
            AdapterError: the policy does not fit the base.
        """
        text, stop, examples = self.engine.base.text, self.task.stop, self.batch(step)
        prompts = render(self.engine.base, examples)
        found = self.engine.generate_tokens(
            Copies(policy, [f"sample-{i}" for i in range(samples)]),
            prompts,
            max_new_tokens=self.max_new_tokens,
            temperature=temperature,
            seed=_sampling_seed(self.seed, step),
            stop=stop,
        )
        said = [[text.through(tokens, stop) for tokens in row] for row in found]
        texts = [[text.completion(tokens, stop) for tokens in row] for row in said]
        rewards = judge(self.reward, examples, texts).T.contiguous()
        self.engine.ledger.evaluations += rewards.numel()
        encoded = text.prompts(prompts)
        pairs = [(prompt, row[p]) for p, prompt in enumerate(encoded) for row in said]
        return Rollouts(rewards, pairs, temperature, self.max_new_tokens)

    def log_probs(
        self,
        a: Mapping[str, Tensor],
        b: Mapping[str, Tensor],
        scale: float,
        rollouts: Rollouts,
        rows: Sequence[int],
    ) -> Tensor:
        """Log-probabilities ``[len(rows), T]`` of some rollouts' tokens, with a graph to the factors.

        Args:
            a: module to ``[r, d_in]``; without any it is the base that answers.
            b: module to ``[d_out, r]``.
            scale: multiplies every ``b @ a``.
            rollouts: from ``rollout``.
            rows: which of them; T is the longest of these, and shorter ones end in zeros.
        """
        pairs = [rollouts.pairs[row] for row in rows]
        return self.engine.log_probs(a, b, scale, pairs, temperature=rollouts.temperature)


def judge(reward: Reward, examples: Sequence[Example], completions: Sequence[Sequence[str]]) -> Tensor:
    """Rewards ``[N, P]`` of N members' completions, one call a member: what fails costs that member alone."""
    import torch

    prompts, answers = [e.prompt for e in examples], [e.answer for e in examples]
    columns = columns_of(examples)
    rows = [reward(prompts, member, answers, columns) for member in completions]
    return torch.tensor(rows, dtype=torch.float32).reshape(len(completions), len(examples))


def no_rewards(failed: Mapping[str, int], error: str | None, where: object) -> RewardError:
    """The error for a reward that judged nothing; the arguments are as in :class:`Rewards`."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in failed.items())
    return RewardError(
        f"every call failed ({kinds or 'all NaN'}); the last: {error or 'no reason was given'}",
        where=where,
        mend="correct the reward function",
    )


def columns_of(examples: Sequence[Example]) -> Columns:
    """``answer``, ``family`` and the data's other columns; None where an example has none of that name."""
    names = dict.fromkeys(name for example in examples for name in example.columns)
    columns: dict[str, Sequence[Any]] = {name: [e.columns.get(name) for e in examples] for name in names}
    return columns | {"answer": [e.answer for e in examples], "family": [e.family for e in examples]}


def refuse_unusable(reward: Reward, examples: Sequence[Example], where: str) -> None:
    """Refuses answers that a reward cannot judge against.

    Raises:
        RewardError: the first such answer's prompt is named.
    """
    for example in examples:
        reason = reward.unusable(example.answer)
        if reason:
            raise RewardError(
                f"{reward.name} cannot judge against the answer to {excerpt(example.prompt)}: {reason}",
                where=where,
                mend="correct the answer, or choose another reward",
            )


def _sampling_seed(seed: int, step: int) -> int:
    """A seed of its own for every step: sums of the two would meet again."""
    digest = hashlib.blake2b(f"{seed}/{step}/sampling".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
