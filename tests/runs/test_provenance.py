import json
import subprocess
import sys
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path

import torch

from evolora.runs import provenance


def test_versions_are_those_installed_and_missing_packages_are_none(monkeypatch):
    monkeypatch.setattr(provenance, "PACKAGES", ("evolora", "torch", "no-such-package-here"))
    found = provenance.collect()["versions"]
    assert found == {
        "evolora": metadata.version("evolora"),
        "torch": metadata.version("torch"),
        "no-such-package-here": None,
    }


def test_everything_is_plain_json_with_the_machine_and_the_moment():
    found = provenance.collect()
    assert json.loads(json.dumps(found)) == found
    started = datetime.fromisoformat(found["started"])
    assert started.utcoffset() == timedelta(0)
    assert found["argv"] == [Path(sys.argv[0]).name, *sys.argv[1:]]
    assert found["cpu"]["threads"] == torch.get_num_threads()
    assert found["cpu"]["model"]
    assert found["memory_bytes"] > 2**28


def test_collecting_loads_no_library():
    code = (
        "import sys; from evolora.runs import provenance; provenance.collect();"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def git(folder, *arguments):
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def test_the_commit_of_the_working_folder_and_whether_it_was_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.collect()["git"] is None
    (tmp_path / "f").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "f")
    git(tmp_path, "commit", "-q", "-m", "one")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    assert provenance.collect()["git"] == {"commit": head, "changed": False}
    (tmp_path / "f").write_text("2")
    assert provenance.collect()["git"] == {"commit": head, "changed": True}
