"""Problems: rewards, the minibatch schedule, evaluation with confidence intervals."""

from evolora.problems.answers import answer_length
from evolora.problems.evaluation import Evaluation, Score, difference, evaluate
from evolora.problems.problem import Problem, Rewards
from evolora.problems.registry import load_reward, reward_names
from evolora.problems.reward import Reward
from evolora.problems.rollouts import Rollouts
from evolora.problems.schedule import batch

__all__ = [
    "Evaluation",
    "Problem",
    "Reward",
    "Rewards",
    "Rollouts",
    "Score",
    "answer_length",
    "batch",
    "difference",
    "evaluate",
    "load_reward",
    "reward_names",
]
