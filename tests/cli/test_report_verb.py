import sys
import types

import pytest


@pytest.fixture(autouse=True)
def pages(monkeypatch):
    module = types.ModuleType("evolora.report")
    module.is_study = lambda folder: "studies" in folder.parts
    module.write_report = lambda folder: folder / "report.html"
    module.write_study_report = lambda folder: folder / "study.html"
    monkeypatch.setitem(sys.modules, "evolora.report", module)


@pytest.mark.parametrize(
    ("folder", "page"),
    [("runs/x", "runs/x/report.html"), ("runs/studies/x", "runs/studies/x/study.html")],
    ids=["run", "study"],
)
def test_the_path_of_the_page_is_all_that_is_printed(run, only_object, folder, page):
    assert run("report", folder).stdout == f"{page}\n"
    assert only_object(run("report", folder, "--json").stdout) == {"report": page}
