"""All studies by name."""

from __future__ import annotations

from importlib import import_module

from evolora.search.options import unknown
from evolora.studies.study import Study

_HOMES = {
    "replicator-mechanism": ("replicator.mechanism", "ReplicatorMechanism"),
    "replicator-friedman": ("replicator.friedman", "ReplicatorFriedman"),
    "replicator-lora": ("replicator.lora", "ReplicatorLora"),
    "replicator-merge-weights": ("replicator.merge_weights", "ReplicatorMergeWeights"),
    "es-matrix": ("es.matrix", "EsMatrix"),
    "es-lm-random": ("es.random", "EsRandom"),
    "es-lm-logprob": ("es.logprob", "EsLogprob"),
    "es-exact-reward": ("es.exact", "EsExact"),
    "es-long-context": ("es.long_context", "EsLongContext"),
    "es-forgetting": ("es.forgetting", "EsForgetting"),
    "es-vs-gradient": ("es.versus_gradient", "EsVersusGradient"),
}


def studies() -> dict[str, Study]:
    """Name to study."""
    return {name: load_study(name) for name in _HOMES}


def load_study(name: str) -> Study:
    """A study by its name.

    Raises:
        ConfigError: there is no such study; the nearest name is suggested.
    """
    if name not in _HOMES:
        raise unknown("study", name, _HOMES)
    home, attribute = _HOMES[name]
    study: Study = getattr(import_module(f"evolora.studies.{home}"), attribute)()
    return study
