"""Adapters and populations: PEFT files, preflight, delta geometry, counter-based noise."""

from evolora.adapters.adapter import Adapter, Factors, ModuleSpec
from evolora.adapters.peft_files import read_adapter, write_adapter
from evolora.adapters.population import DENSE, Copies, Population, Stack, Stacked, as_population
from evolora.adapters.preflight import Preflight

__all__ = [
    "DENSE",
    "Adapter",
    "Copies",
    "Factors",
    "ModuleSpec",
    "Population",
    "Preflight",
    "Stack",
    "Stacked",
    "as_population",
    "read_adapter",
    "write_adapter",
]
