import re
from pathlib import Path

import pytest

from evolora.cli.app import VERBS, load
from evolora.version import __version__

REFERENCE = Path(__file__).parents[2] / "docs" / "cli.md"


def flags(verb):
    return {flag for parameter in load(verb).params for flag in parameter.opts if flag.startswith("--")}


def section(verb):
    text = REFERENCE.read_text(encoding="utf-8")
    return re.search(rf"^## {verb}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE).group(1)


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_and_json(run, verb):
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert f"evolora {verb}" in result.stdout.partition("Example:")[2]
    assert "--json" in result.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_the_reference_names_exactly_the_options_there_are(verb):
    written = set(re.findall(r"--[a-z][a-z-]*", section(verb)))
    assert written == flags(verb) - {"--help"}


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_and_the_verb_say_the_same(verb):
    assert load(verb).help.splitlines()[0] == VERBS[verb]


def test_without_a_verb_the_help_is_shown(run):
    result = run()
    assert result.exit_code == 0
    assert all(verb in result.stdout for verb in VERBS)


def test_version(run):
    assert run("--version").stdout == f"evolora {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["adpat"], "'adapt'"),
        (["adapt", "--tsk", "x"], "--task"),
        (["evaluate"], "--task"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--seed"], "--seed"),
        (["inspect"], "ADAPTER"),
        (["methods", "surplus"], "surplus"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_usage_error_is_one_helpful_line_and_exit_code_2(run, arguments, hint):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
    assert hint.lower() in result.stderr.lower()
