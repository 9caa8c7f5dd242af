import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from evolora.engine.allocator import keep_freed_memory
print(keep_freed_memory() if sys.argv[1] == "keep" else None, keep_freed_memory.cache_info().currsize)
def take():
    blocks = [np.ones(1 << 20, np.float32) for _ in range(40)]  # 160 MB, as small as activations are
take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, mode],
        capture_output=True,
        text=True,
        check=True,
        env=clean | {"OMP_NUM_THREADS": "1"} | environment,
    )
    answer, count = done.stdout.splitlines()
    return answer.split()[0], int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_memory_that_was_freed_is_not_faulted_in_again():
    taken, kept = faults("keep")
    if taken == "False":
        pytest.skip("another C library")
    _, plain = faults("leave")
    assert kept < 500 < plain


@pytest.mark.parametrize(
    "setting", [{"MALLOC_TRIM_THRESHOLD_": "1000"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1000"}]
)
def test_what_the_user_has_tuned_is_left_alone(setting):
    assert faults("keep", **setting)[0] == "False"
