import sys
import types
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def page(monkeypatch):
    module = types.ModuleType("evolora.report.page")
    module.write_report = lambda run: Path(run) / "report.html"
    monkeypatch.setitem(sys.modules, "evolora.report.page", module)


def test_the_path_of_the_page_is_all_that_is_printed(run):
    assert run("report", "runs/x").stdout == "runs/x/report.html\n"


def test_json_names_the_page(run, only_object):
    assert only_object(run("report", "runs/x", "--json").stdout) == {"report": "runs/x/report.html"}
