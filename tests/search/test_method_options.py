import pytest
from pydantic import ValidationError

from evolora.errors import ConfigError
from evolora.search import AdamW, Eggroll, make_method, methods


@pytest.mark.parametrize("name", methods())
def test_every_method_describes_itself_and_each_of_its_options(name):
    method = methods()[name]
    assert method.name == name
    assert method.summary
    assert "arXiv" in method.source
    for option in method.table():
        assert option.description.endswith(".") or option.description
        assert option.type
        assert getattr(make_method(name), option.name) == option.default


def test_the_table_shows_types_choices_and_ranges():
    rows = {option.name: option for option in Eggroll.table()}
    assert rows["sigma"].type == "float"
    assert rows["sigma"].range == ">= 0"
    assert rows["space"].type == "weights | factors"
    assert {option.name: option.range for option in AdamW.table()}["beta1"] == ">= 0, < 1"


def test_options_are_frozen():
    with pytest.raises(ValidationError):
        Eggroll().sigma = 1.0


def test_strings_from_a_command_line_become_what_they_name():
    method = make_method("eggroll", sigma="0.03", population="8", decay_sigma="true")
    assert (method.sigma, method.population, method.decay_sigma) == (0.03, 8, True)


def test_equal_options_are_equal_methods():
    assert Eggroll(sigma=0.5) == Eggroll(sigma=0.5) != Eggroll(sigma=0.4)


def test_an_unknown_method_is_refused_with_the_nearest():
    with pytest.raises(
        ConfigError, match=r"unknown method 'egroll'; did you mean 'eggroll'\? known: eggroll, .*adamw"
    ):
        make_method("egroll")


def test_an_unknown_option_is_refused_with_the_nearest_and_all_that_are_known():
    with pytest.raises(
        ConfigError, match=r"eggroll: unknown option 'sgima'; did you mean 'sigma'\? known: sigma, lr"
    ):
        make_method("eggroll", sgima=0.1)
    with pytest.raises(ConfigError, match="unknown option 'zzz'; known: sigma"):
        make_method("eggroll", zzz=0.1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sigma": -1}, "sigma should be greater than or equal to 0, not -1"),
        ({"sigma": float("nan")}, "sigma should be a finite number"),
        ({"sigma": "much"}, "sigma should be a valid number.*not 'much'"),
        ({"rank": 0}, "rank should be greater than or equal to 1"),
        ({"rank": 1.5}, "rank should be a valid integer"),
        ({"space": "weihgts"}, "space should be 'weights' or 'factors', not 'weihgts'"),
        ({"population": True}, "population takes no true"),
        ({"optimiser": "lbfgs"}, "optimiser should be"),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_line(options, said):
    with pytest.raises(ConfigError, match=said) as caught:
        make_method("eggroll", **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("eggroll: ")
