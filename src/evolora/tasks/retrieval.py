"""The family ``retrieval``: something is said somewhere in a long text, and asked at its end.

    needle     one of four people's words          The word of Anna is tiger. ... The word of Anna is
    hop        two statements, put together        The friend of Anna is Tom. The word of Tom is tiger.
                                                   ... The word of the friend of Anna is
    majority   what five people like, and two      Anna likes the lamp. ... Most people like the
               each of two other things

The size is the length of the prompt in tokens, about: a word or a full stop counts as one. What stands around
the statements is made of sentences that say nothing of them. An answer ends at the full stop.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from evolora.tasks.procedural import Subtask
from evolora.tasks.strings import WORDS

NAMES = tuple(
    """Adam Alice Anna Ben Bob Carl Clara Daniel David Ella Emma Eric Eva Felix Frank George Grace Hanna
    Harry Helen Henry Ida Jack James Jane John Julia Karl Kate Laura Leo Lisa Lucas Lucy Maria Mark Martin
    Mary Max Mia Nina Noah Nora Olivia Oscar Paul Peter Rose Ruth Sam Sara Simon Sofia Thomas Tim Tom
    Victor Walter""".split()
)
PLACES = tuple("garden house river market school station harbour village forest bridge".split())
TIMES = tuple("morning evening summer winter spring autumn".split())
DOES = ("was quiet", "was full of people", "looked green", "smelt of rain", "lay in the sun", "was closed")
PROMPTS = 1_000_000  # each number is a text of its own; two alike would need the same hundred choices
PEOPLE, FRIENDS = 4, 3

Statements = Callable[[Random], tuple[list[str], str, str]]  # statements, question, answer


def _needle(rng: Random) -> tuple[list[str], str, str]:
    people, words = rng.sample(NAMES, PEOPLE), rng.sample(WORDS, PEOPLE)
    said = [f"The word of {name} is {word}." for name, word in zip(people, words, strict=True)]
    return said, f"The word of {people[0]} is", words[0]


def _hop(rng: Random) -> tuple[list[str], str, str]:
    people, words = rng.sample(NAMES, 2 * PEOPLE), rng.sample(WORDS, PEOPLE)
    friends = people[PEOPLE:]
    said = [
        f"The friend of {name} is {friend}." for name, friend in zip(people[:PEOPLE], friends, strict=True)
    ]
    said += [f"The word of {friend} is {word}." for friend, word in zip(friends, words, strict=True)]
    return said, f"The word of the friend of {people[0]} is", words[0]


def _majority(rng: Random) -> tuple[list[str], str, str]:
    words = rng.sample(WORDS, 3)
    liked = [words[0]] * 5 + words[1:] * 2
    people = rng.sample(NAMES, len(liked))
    said = [f"{name} likes the {word}." for name, word in zip(people, liked, strict=True)]
    return said, "Most people like the", words[0]


def _text(rng: Random, statements: list[str], tokens: int) -> str:
    """The statements, in any order and anywhere, among sentences about nothing."""
    sentences = list(statements)
    length = sum(_tokens(sentence) for sentence in sentences)
    while length < tokens:
        sentence = f"In the {rng.choice(TIMES)} the {rng.choice(PLACES)} {rng.choice(DOES)}."
        sentences.append(sentence)
        length += _tokens(sentence)
    rng.shuffle(sentences)
    return " ".join(sentences)


def _tokens(sentence: str) -> int:
    return len(sentence.split()) + 1


def _subtask(name: str, description: str, statements: Statements) -> Subtask:
    def case(size: int, number: int) -> tuple[str, str]:
        rng = Random(f"retrieval/{name}/{size}/{number}")
        said, question, answer = statements(rng)
        return f"{_text(rng, said, size - _tokens(question))}\n{question}", answer

    sizes = range(128, 8193)
    return Subtask(
        "retrieval", name, description, sizes, 512, lambda size: PROMPTS, case, "{arguments}", stop="."
    )


RETRIEVAL = (
    _subtask("needle", "a word said once in a long text", _needle),
    _subtask("hop", "two statements of a long text, put together", _hop),
    _subtask("majority", "the thing that most people of a long text like", _majority),
)
