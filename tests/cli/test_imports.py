import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "peft", "scipy", "plotly", "pyarrow", "numpy", "huggingface_hub"}
RUN = """
import sys
from evolora.cli.app import app
try:
    app({arguments!r})
except SystemExit as end:
    assert end.code == 0, end.code
"""


def loaded_by(code):
    report = f"{code}\nimport sys; sys.stderr.write('LOADED ' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(done.stderr.rpartition("LOADED ")[2].split())


def test_importing_the_package_loads_nothing_heavy_and_no_pydantic():
    modules = loaded_by("import evolora")
    assert not modules & (HEAVY | {"pydantic", "yaml", "typer", "rich"})
    assert "evolora.version" in modules


def test_reaching_for_every_public_name_loads_no_framework():
    modules = loaded_by("import evolora\nfor name in evolora.__all__: getattr(evolora, name)")
    assert "evolora.engine.engine" in modules
    assert not modules & (HEAVY - {"numpy"})


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["adapt", "--help"], ["bench", "--help"]], ids=" ".join
)
def test_help_loads_nothing_heavy(arguments):
    assert not loaded_by(RUN.format(arguments=arguments)) & HEAVY


def test_the_list_of_verbs_loads_no_verb():
    modules = loaded_by(RUN.format(arguments=["--help"]))
    assert not {
        name for name in modules if name in ("evolora.cli.adapt", "evolora.cli.doctor", "evolora.config")
    }
