import pytest

from evolora.engine import Base, Engine


@pytest.fixture
def base(tiny_model, char_tokenizer):
    return Base(tiny_model, char_tokenizer, "tiny")


@pytest.fixture
def engine(base):
    return Engine(base)


@pytest.fixture
def llama_engine(tiny_llama, char_tokenizer):
    return Engine(Base(tiny_llama, char_tokenizer, "tiny"))
