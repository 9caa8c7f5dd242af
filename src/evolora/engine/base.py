"""The base: a frozen causal LM, its tokenizer, and what the engine needs to know about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evolora.adapters import Adapter, ModuleSpec
from evolora.engine.fingerprint import fingerprint
from evolora.engine.probe import probe
from evolora.engine.selection import select
from evolora.engine.structure import Layers, Structure, Targets, embedding_scale, plain_weight
from evolora.engine.text import Text
from evolora.errors import AdapterError, ModelError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(eq=False)
class Base:
    """A frozen model and its tokenizer; never written to.

    Attributes:
        model: a causal LM of transformers, in eval mode, no parameter requiring a gradient.
        tokenizer: its tokenizer.
        name: what the user asked for: a Hub id, a folder, or the name of the bundled model.
        reference: what an exported adapter records as its base; PEFT's ``from_pretrained`` finds the model by
            it.
    """

    model: PreTrainedModel = field(repr=False)
    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    name: str
    reference: str = ""

    def __post_init__(self) -> None:
        self.model.eval()
        self.model.requires_grad_(False)
        self.reference = self.reference or self.name

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that name these weights, whatever their dtype."""
        return fingerprint(self.model)

    @cached_property
    def structure(self) -> Structure:
        """Layers, adaptable modules, shared inputs.

        Raises:
            ModelError: the model is no causal language model that the engine can run exactly.
        """
        return probe(self.model)

    @cached_property
    def parts_anywhere(self) -> bool:
        """Whether rows can part into members at any layer without changing a result (tried once)."""
        from evolora.engine.passes import parts_exactly

        return parts_exactly(self)

    @cached_property
    def text(self) -> Text:
        """Texts as this model's tokens."""
        return Text(self)

    @property
    def max_length(self) -> int | None:
        """The most tokens of a sequence that the model has positions for; None where it says none."""
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return int(limit) if limit and limit > 0 else None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the activations."""
        return self.model.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def depth(self) -> int:
        """The number of decoder layers."""
        return len(self.structure.layers)

    @cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """The ids that end a completion; the first is the one appended to answers.

        Raises:
            ModelError: neither the tokenizer nor the generation config names one.
        """
        ends = [self.tokenizer.eos_token_id]
        configured = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        ends += configured if isinstance(configured, list) else [configured]
        known = tuple(dict.fromkeys(int(e) for e in ends if e is not None))
        if not known:
            raise ModelError(
                "the tokenizer has no end-of-text token", where=self.name, mend="set tokenizer.eos_token"
            )
        return known

    def modules(self, targets: Targets = "all-linear", layers: Layers = None) -> dict[str, ModuleSpec]:
        """Modules to adapt, by name and shape; ``evolora.engine.selection`` says what the arguments take."""
        return select(self.structure, targets, layers)

    def weight_norms(self, paths: Iterable[str]) -> dict[str, Tensor]:
        """The norm of each output channel of some modules' weights, float32 ``[d_out]`` on the CPU.

        To the bit those that the engine divides by where ``B A = 0``: DoRA then starts exactly at the base.

        Raises:
            ModelError: a module is quantised: its weight is no plain float matrix.
        """
        import torch

        return {
            path: self._norms(path, torch.zeros(0, spec.d_in), torch.zeros(spec.d_out, 0))
            for path, spec in ((path, self.structure.specs[path]) for path in paths)
        }

    def as_dora(self, adapter: Adapter) -> Adapter:
        """The same function as a DoRA adapter: magnitudes ``||W + B A||`` where it has none.

        Raises:
            AdapterError: it does not fit this base.
            ModelError: a module is quantised, see ``weight_norms``.
        """
        self.check(adapter)
        modules = {
            path: factors
            if factors.magnitude is not None
            else replace(factors, magnitude=self._norms(path, factors.a, factors.scale * factors.b))
            for path, factors in adapter.modules.items()
        }
        return replace(adapter, modules=modules)

    def _norms(self, path: str, a: Tensor, b: Tensor) -> Tensor:
        from evolora.adapters.geometry import weight_norms

        if self.structure.specs[path].kind == "embedding":
            raise ModelError("DoRA on an embedding is not supported", where=path, mend="adapt linear layers")
        weight = plain_weight(self.model.get_submodule(path))
        if weight is None:
            raise ModelError(
                "its weight is quantised, so its norms are unknown",
                where=path,
                mend="load the base unquantised, or choose a method without magnitudes",
            )
        return weight_norms(weight.float(), a.to(weight.device), b.to(weight.device)).cpu()

    def embedding_scale(self, path: str) -> float:
        """What a module multiplies an embedding's rows by; 1 for all other modules."""
        module = self.model.get_submodule(path)
        return embedding_scale(module) if self.structure.specs[path].kind == "embedding" else 1.0

    def encode(self, text: str, *, answer: bool = False) -> list[int]:
        """Token ids; prompts start with the tokenizer's special tokens (unless they carry them)."""
        return self.text.encode([text], starts=not answer)[0]

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A chat as the text of a prompt, by the tokenizer's chat template.

        Raises:
            ModelError: the tokenizer has no chat template.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            raise ModelError(
                "the tokenizer has no chat template", where=self.name, mend="give 'prompt' texts instead"
            )
        chat: list[dict[str, Any]] = [dict(message) for message in messages]
        return str(self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))

    def check(self, adapter: Adapter) -> None:
        """Compares an adapter with this base.

        Raises:
            AdapterError: a module is missing, a shape differs, or it was made on other weights.
        """
        recorded = adapter.provenance.get("base_fingerprint")
        self.check_specs(adapter.specs, adapter.base, recorded, adapter.name)

    def check_specs(
        self,
        specs: Mapping[str, ModuleSpec],
        base_name: str | None,
        base_fingerprint: str | None,
        where: object,
    ) -> None:
        """The same check from shapes alone (a preflight has read no values)."""
        known = self.structure.specs
        made_for = f"it was made for {base_name}" if base_name else "it was made for another base"
        for path, spec in specs.items():
            if path not in known:
                raise AdapterError(f"{self.name} has no module {path}", where=where, mend=made_for)
            if known[path] != spec:
                raise AdapterError(
                    f"{path} is {spec.d_out} x {spec.d_in} in the adapter and "
                    f"{known[path].d_out} x {known[path].d_in} in {self.name}",
                    where=where,
                    mend=made_for,
                )
        if base_fingerprint and base_fingerprint != self.fingerprint:
            raise AdapterError(
                f"the adapter was made on weights {base_fingerprint}, {self.name} has {self.fingerprint}",
                where=where,
                mend=f"load the base it names: {base_name or 'unknown'}",
            )
