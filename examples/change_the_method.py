"""One word changes the method; the budget is the same for all: forward FLOPs, wherever they are spent.

python examples/change_the_method.py            half an hour on two cores
python examples/change_the_method.py --tiny     seconds, too little to learn anything
"""

import sys

import evolora as ev

tiny = "--tiny" in sys.argv
METHODS = {
    "eggroll": {"population": 4} if tiny else {"sigma": 0.03},
    "random_search": {"population": 4} if tiny else {"sigma": 0.03},
    "replicator": {"population": 4} if tiny else {},
    "grpo": {"samples": 2} if tiny else {},
    "adamw": {},
}

base = ev.load_base("smollm2-135m")
task = ev.load_task("things", test=10 if tiny else None)
print(f"{'method':<14} {'steps':>5} {'gain':>7}  forward, backward FLOPs")
for name, options in METHODS.items():
    outcome = ev.adapt(
        base,
        task,
        method=ev.make_method(name, **options),
        reward="exact",
        layers="top:1" if tiny else "top:4",
        batch=4 if tiny else 32,
        budget=ev.Budget(forward_flops=1e10 if tiny else 1e13),
    )
    spent = f"{outcome.ledger.forward_flops:.1e}, {outcome.ledger.backward_flops:.1e}"
    print(f"{name:<14} {outcome.steps:>5} {outcome.difference['value']:>+7.3f}  {spent}", flush=True)
