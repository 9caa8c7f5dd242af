"""Options of a method: one frozen model with ranges and docs for Python, the command and the docs table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from evolora.errors import ConfigError


@dataclass(frozen=True)
class Option:
    """One option as a row of the docs table.

    Attributes:
        name: as written in Python and YAML.
        type: ``float``, ``int``, ``bool`` or the choices.
        default: the default value.
        range: ``>= 0`` and the like; empty if there is none.
        description: one line.
    """

    name: str
    type: str
    default: Any
    range: str
    description: str


class Options(BaseModel):
    """The base of every method: its fields are the method's options, immutable once made.

    Strings that name a number or a truth value are accepted, so that a command line needs no types of its
    own.

    Raises:
        ConfigError: an unknown option (the nearest known one is suggested) or a value out of range; one line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    name: ClassVar[str] = "options"

    def __init__(self, **options: Any) -> None:
        fields = type(self).model_fields
        for option in options:
            if option not in fields:
                raise unknown("option", option, fields, where=self.name)
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise _config_error(error, self.name, fields) from None

    @model_validator(mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, values: Any) -> Any:
        for option, value in values.items():
            if isinstance(value, bool) and cls.model_fields[option].annotation is not bool:
                raise ValueError(f"{option} takes no {str(value).lower()}")
        return values

    @classmethod
    def table(cls) -> tuple[Option, ...]:
        """The options as rows for ``evolora methods`` and the docs."""
        return tuple(
            Option(name, _type(field), field.default, ", ".join(_bounds(field)), field.description or "")
            for name, field in cls.model_fields.items()
        )


def unknown(kind: str, name: str, known: Iterable[str], *, where: object = None) -> ConfigError:
    """The error for a name that is not among the known ones, with the nearest that is."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"unknown {kind} {name!r}", where=where, mend=f"{hint}known: {', '.join(names)}")


def _config_error(error: ValidationError, where: str, fields: dict[str, FieldInfo]) -> ConfigError:
    first = error.errors(include_url=False)[0]
    text = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not first["loc"]:
        return ConfigError(text, where=where)
    option = str(first["loc"][0])
    return ConfigError(
        f"{option} {text}, not {first['input']!r}", where=where, mend=fields[option].description
    )


def _type(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return " | ".join(str(choice) for choice in get_args(field.annotation))
    kinds = get_args(field.annotation) or (field.annotation,)
    return " | ".join(getattr(kind, "__name__", str(kind)) for kind in kinds if kind is not NoneType)


def _bounds(field: FieldInfo) -> Iterator[str]:
    for bound in field.metadata:
        for attribute, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
            if (value := getattr(bound, attribute, None)) is not None:
                yield f"{sign} {value}"
