"""Tasks: procedural families, facts, sentiment, the user's files; splits that share no prompt."""

from evolora.tasks.registry import load_task, task_names
from evolora.tasks.task import SPLITS, Example, Message, Prompt, Split, Task

__all__ = ["SPLITS", "Example", "Message", "Prompt", "Split", "Task", "load_task", "task_names"]
