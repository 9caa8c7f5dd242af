from evolora.search.registry import methods
from evolora.tasks import task_names


def test_methods_come_from_the_registry_with_their_options(run, only_object):
    found = only_object(run("methods", "--json").stdout)["methods"]
    assert {row["name"] for row in found} == set(methods())
    for row in found:
        assert row["summary"]
        assert row["source"]
        assert {option["name"] for option in row["options"]} == set(methods()[row["name"]].model_fields)
    text = run("methods").stdout
    assert all(option["name"] in text for row in found for option in row["options"])


def test_one_method_by_its_name(run, only_object):
    assert [row["name"] for row in only_object(run("methods", "mezo", "--json").stdout)["methods"]] == [
        "mezo"
    ]
    text = run("methods", "mezo").stdout
    assert "Options of mezo" in text
    assert "Options of eggroll" not in text
    wrong = run("methods", "megroll")
    assert wrong.exit_code == 2
    assert "did you mean 'eggroll'?" in wrong.stderr


def test_tasks_come_from_the_registry(run, only_object):
    found = only_object(run("tasks", "--json").stdout)["tasks"]
    assert [(row["name"], row["description"], row["source"]) for row in found] == task_names()
    text = run("tasks").stdout
    assert all(name in text for name, _, _ in task_names())
