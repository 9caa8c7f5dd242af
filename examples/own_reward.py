"""Your own reward, in TRL's signature, on your own JSONL file; here: short answers are good answers.

    python examples/own_reward.py [--tiny]

The same from the shell, where the reward stands in a file:

    evolora adapt --task mine.jsonl --reward reward.py:brevity --layers top:4 --out runs/mine
"""

import json
import sys
import tempfile
from pathlib import Path

import evolora as ev

tiny = "--tiny" in sys.argv

REWARD = '''
def brevity(prompts, completions, **columns):
    """One for a single word, less for more; columns holds answer, family and your own columns."""
    return [1 / max(1, len(said[-1]["content"].split())) for said in completions]  # chats are messages
'''

folder = Path(tempfile.mkdtemp())
(folder / "reward.py").write_text(REWARD)
questions = [f"What is {a} plus {b}?" for a in range(2, 8) for b in range(2, 8)]
rows = [
    {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": "a number"}]}
    for q in questions
]
(folder / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))

outcome = ev.adapt(
    "smollm2-135m",
    str(folder / "mine.jsonl"),
    reward=f"{folder / 'reward.py'}:brevity",
    method=ev.Eggroll(population=2 if tiny else 16, sigma=0.02, lr=1.0),
    layers="top:2" if tiny else "top:8",
    batch=2 if tiny else 8,
    budget=ev.Budget(steps=1 if tiny else 10),
)
print(f"mean reward {outcome.base.accuracy:.3f} -> {outcome.adapted.accuracy:.3f}")
print(f"before: {outcome.base.completions[0]!r}")
print(f"after:  {outcome.adapted.completions[0]!r}")
