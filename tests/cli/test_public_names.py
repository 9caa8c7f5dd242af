import pytest

import evolora


@pytest.mark.parametrize("name", evolora.__all__)
def test_every_public_name_resolves_and_is_listed(name):
    assert getattr(evolora, name) is not None
    assert name in dir(evolora)


def test_every_lazy_name_is_public_and_the_other_way_round():
    assert sorted(evolora.__all__) == sorted([*evolora._HOME, "__version__"])


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Adaptre'"):
        _ = evolora.Adaptre
