"""The options of one adaptation, from Python, YAML or the command line: one model validates all three."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from evolora.errors import ConfigError

if TYPE_CHECKING:
    from evolora.guard import Watch

DEFAULT_STEPS = 40
BUDGETS = ("steps", "evaluations", "tokens", "forward_flops", "flops", "seconds")
_PRESETS = ("all-linear", "attention", "mlp")
_NAMES = re.compile(r"[\w.]+(\s*,\s*[\w.]+)*")
_PER_CALL = {"resume", "overwrite"}


class AdaptConfig(BaseModel):
    """Everything that decides one adaptation. A budget that is None does not limit; without any, 40 steps do.

    Use :meth:`make` or :meth:`read` for errors of one line; the constructor raises pydantic's own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    model: str = Field(
        "smollm2-135m", description="The base: smollm2-135m, a Hub id, a folder or a GGUF file."
    )
    task: str = Field(description="What to teach: a built-in task (see `evolora tasks`) or a JSONL file.")
    reward: str | None = Field(
        None,
        description="What is rewarded: exact, numeric, contains, regex:PATTERN, logprob or FILE.py:FUNCTION. "
        "The task's own if not given.",
    )
    reward_timeout: float = Field(
        60.0, gt=0, description="Seconds that one call of a reward function may take."
    )
    shots: int = Field(0, ge=0, description="Solved training prompts that stand in front of every prompt.")
    stop: str | None = Field(
        None,
        min_length=1,
        description="A text that ends an answer, as '\\n' for one line. The task's own if not given.",
    )
    max_new_tokens: int | None = Field(
        None, ge=1, description="Longest completion. Long enough for every answer if not given."
    )
    method: str = Field("eggroll", description="The algorithm (see `evolora methods`).")
    options: dict[str, Any] = Field({}, description="The method's own options.")

    targets: str | list[str] = Field(
        "all-linear",
        description="What is adapted: all-linear, attention, mlp, names (q_proj,v_proj) or a regex.",
    )
    layers: str | list[int] | None = Field(
        None, description="Which layers: top:8, bottom:8, 0-5 or 0,3,7. All if not given."
    )
    start: Path | None = Field(None, description="An adapter folder to start from.")
    export_rank: int | None = Field(None, ge=1, description="The rank of the adapter that is saved.")

    batch: int = Field(32, ge=1, description="Prompts a step.")
    budget_steps: int | None = Field(
        None, ge=1, description=f"Stop after this many steps ({DEFAULT_STEPS} if no budget is set)."
    )
    budget_evaluations: int | None = Field(None, ge=1, description="Stop after this many scored completions.")
    budget_tokens: int | None = Field(
        None, ge=1, description="Stop after this many tokens, read or generated."
    )
    budget_forward_flops: float | None = Field(
        None, gt=0, description="Stop after this many FLOPs in forward passes, whatever backward passes cost."
    )
    budget_flops: float | None = Field(
        None, gt=0, description="Stop after this many FLOPs in forward and backward passes together."
    )
    budget_seconds: float | None = Field(None, gt=0, description="Stop after this many seconds.")
    train: int | None = Field(
        None,
        ge=1,
        description="Training prompts. All of a file, 1000 of a generated task if not given.",
    )
    validation: int | None = Field(
        None, ge=1, description="Validation prompts. All of a file, 200 of a generated task if not given."
    )
    test: int | None = Field(
        None, ge=1, description="Test prompts. All of a file, 200 of a generated task if not given."
    )

    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="The number type of the base."
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 or mps.")
    threads: int | None = Field(None, ge=1, description="CPU threads. torch's choice if not given.")
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens in one forward pass: bounds the memory. The engine's choice if not given.",
    )
    trust_remote_code: bool = Field(False, description="Let a Hub model run its own Python code.")

    validate_every: int | None = Field(
        None, ge=1, description="Look at validation prompts after so many steps, and keep the best state."
    )
    patience: int | None = Field(
        None, ge=1, description="Stop after so many looks without a better one; needs validate_every."
    )
    diagnose: bool = Field(
        False, description="Afterwards say what changed: drift, spectra, divergence, forgetting, ..."
    )
    retain: str | None = Field(
        None, description="The prior task that diagnose asks before and after (not the run's own)."
    )

    seed: int = Field(0, ge=0, description="Every random choice follows from it.")
    out: Path = Field(Path("runs/adapt"), description="The run's folder.")
    resume: bool = Field(False, description="Continue the run in the folder, bit for bit.")
    overwrite: bool = Field(False, description="Replace what stands in the folder.")

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: Any, info: Any) -> Any:
        wanted = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and wanted is not bool:
            raise ValueError(f"{str(value).lower()} is not what this option takes")
        return value

    @field_validator("targets", mode="before")
    @classmethod
    def _names_become_a_list(cls, value: Any) -> Any:
        if isinstance(value, str) and value not in _PRESETS and _NAMES.fullmatch(value.strip()):
            return [name.strip() for name in value.split(",")]
        return value

    @field_validator("stop")
    @classmethod
    def _escapes_are_read(cls, value: str | None) -> str | None:
        return read_escapes(value)

    @field_validator("layers", mode="before")
    @classmethod
    def _numbers_become_a_list(cls, value: Any) -> Any:
        if isinstance(value, int):
            return [value]
        if isinstance(value, str) and re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", value):
            return [int(number) for number in value.split(",")]
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite exclude each other")
        if self.patience is not None and self.validate_every is None:
            raise ValueError("patience needs validate_every: nothing is looked at without it")
        if self.retain is not None and not self.diagnose:
            raise ValueError("retain needs diagnose: nothing is asked without it")
        if not self.budgets():
            object.__setattr__(self, "budget_steps", DEFAULT_STEPS)
        return self

    def budgets(self) -> dict[str, Any]:
        """The budgets that are set, by the names of ``Budget``."""
        named = {name: getattr(self, f"budget_{name}") for name in BUDGETS}
        return {name: value for name, value in named.items() if value is not None}

    def sizes(self) -> dict[str, int]:
        """The split sizes that are set, by split: the keyword arguments of ``load_task``."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: size for name, size in named.items() if size is not None}

    def watch(self) -> Watch | None:
        """What the guard of the search is asked to do, if there is one."""
        from evolora.guard import Watch

        return None if self.validate_every is None else Watch(self.validate_every, self.patience)

    def record(self) -> dict[str, Any]:
        """The resolved options as plain values for a YAML file, without what concerns one call only."""
        return self.model_dump(mode="json", exclude=_PER_CALL)

    @classmethod
    def make(
        cls, values: Mapping[str, Any], *, where: object = None, origins: Mapping[str, str] | None = None
    ) -> Self:
        """Validates options given as a mapping.

        Args:
            values: option names (with ``_``) to values; text such as ``"40"`` is read as the number it names.
            where: the file they come from, for the message.
            origins: where single options come from instead, such as ``{"batch": "--batch"}``.

        Raises:
            ConfigError: an unknown name or a value that does not fit; one line, the nearest name suggested.
        """
        check_names(values, cls.model_fields, where=where)
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise _refusal(error, where, origins or {}) from None

    @classmethod
    def read(cls, path: str | Path, **overrides: Any) -> Self:
        """Reads a YAML file of options; keyword arguments win over it.

        Raises:
            ConfigError: the file is absent, is not a YAML mapping, or holds an unknown name or a wrong value.
        """
        return cls.make(read_yaml(path) | overrides, where=path)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Reads a YAML file of option names and values; ``-`` and ``_`` in names are the same.

    Raises:
        ConfigError: the file is absent, cannot be read, or is not a YAML mapping.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the options cannot be read ({_reason(error)})", where=path, mend="give a YAML file"
        ) from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(";")[0]
        raise ConfigError(
            f"not YAML ({reason})", where=path, mend="write one `option: value` a line"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(
            f"not YAML ({problem})", where=where, mend="write one `option: value` a line"
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError("not a mapping of options", where=path, mend="write one `option: value` a line")
    return {str(name).replace("-", "_"): value for name, value in content.items()}


def read_escapes(text: str | None) -> str | None:
    """A line break or tab that was written as two characters, as shells make people do, becomes one."""
    return None if text is None else text.replace("\\n", "\n").replace("\\t", "\t")


def check_names(values: Mapping[str, Any], known: Mapping[str, Any], *, where: object = None) -> None:
    """Refuses a name that is not known, with the nearest one that is.

    Raises:
        ConfigError: the first unknown name.
    """
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            mend = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown option {name!r}", where=where, mend=mend)


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or "not UTF-8 text").lower()


def _refusal(error: ValidationError, where: object, origins: Mapping[str, str]) -> ConfigError:
    """The first of pydantic's findings as one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    text = first["msg"].removeprefix("Value error, ").removeprefix("Input ").partition(", unable to")[0]
    if not first["loc"]:
        return ConfigError(text, where=where, mend="give one of them")
    name = str(first["loc"][0])
    meaning = AdaptConfig.model_fields[name].description or ""
    mend = f"it is: {meaning[:1].lower()}{meaning[1:].rstrip('.')}"
    if first["type"] == "missing":
        return ConfigError(f"{name} is missing", where=where, mend=mend)
    place = origins.get(name) or (f"{where}: {name}" if where is not None else name)
    return ConfigError(f"{text}, not {str(first['input'])[:40]!r}", where=place, mend=mend)
