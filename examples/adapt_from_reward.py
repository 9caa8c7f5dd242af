"""Teach the bundled model a form of answer from a 0/1 reward, in memory; keep the adapter.

python examples/adapt_from_reward.py            a few minutes on two cores
python examples/adapt_from_reward.py --tiny     seconds, too little to learn anything
"""

import sys
import tempfile

import evolora as ev

tiny = "--tiny" in sys.argv

base = ev.load_base("smollm2-135m")
outcome = ev.adapt(
    base,
    ev.load_task("things", test=10 if tiny else None),
    method=ev.Eggroll(population=4 if tiny else 32, sigma=0.03, lr=1.0),
    reward="exact",
    layers="top:2" if tiny else "top:4",
    batch=4 if tiny else 32,
    budget=ev.Budget(steps=2 if tiny else 15),
)
print(f"base     {outcome.base.accuracy:.3f}")
print(f"adapted  {outcome.adapted.accuracy:.3f}")
print(f"gain     {outcome.difference['value']:+.3f}, 95 % interval {outcome.difference['ci']}")
print(
    f"spent    {outcome.ledger.forward_flops:.2e} forward FLOPs, {outcome.ledger.backward_flops:.0f} backward"
)

folder = outcome.adapter.save(tempfile.mkdtemp() + "/adapter")
print(f"PEFT loads it from {folder}")
