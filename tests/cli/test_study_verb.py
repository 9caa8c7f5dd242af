from evolora.studies import studies


def test_the_list_comes_from_the_registry(run, only_object):
    found = only_object(run("study", "list", "--json").stdout)["studies"]
    assert {row["name"] for row in found} == set(studies())
    assert all(row["claims"] and row["source"] for row in found)
    text = run("study", "list").stdout
    assert all(name in text for name in studies())


def test_a_study_is_run_and_shown_again(run, only_object, tmp_path):
    arguments = ("replicator-friedman", "--preset", "smoke", "--out", tmp_path / "study")
    ran = only_object(run("study", "run", *arguments, "--json", "--quiet").stdout)
    assert (ran["study"], ran["preset"]) == ("replicator-friedman", "smoke")
    assert {"claim", "holds", "effect", "ci", "p", "n"} <= ran["claims"][0].keys()
    page = tmp_path / "study" / "report.html"
    assert ran["report"] == str(page)
    page.unlink()
    assert only_object(run("study", "show", *arguments, "--json").stdout) == ran
    first = page.read_bytes()
    page.unlink()
    assert run("report", tmp_path / "study").stdout == f"{page}\n"
    assert page.read_bytes() == first
    text = run("study", "show", *arguments).stdout
    assert f"report {page}" in text
    assert "does not hold: the tuned population" in text
    assert "among 2 tests (Holm's p 0.062)" in " ".join(text.split())
    assert "the source: 0 wins of 8" in text


def test_what_is_wrong_is_said_in_one_line(run, tmp_path):
    for arguments, words in (
        (("study", "walk"), "choose list, run, show"),
        (("study", "run"), "no study is named"),
        (("study", "run", "replicator-fridman"), "did you mean 'replicator-friedman'?"),
        (("study", "run", "replicator-friedman", "--preset", "huge"), "choose smoke, small, full"),
        (("study", "show", "replicator-friedman", "--out", tmp_path), "holds no finished study"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert words in " ".join(result.stderr.split())
