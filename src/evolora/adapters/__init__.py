"""Adapters and populations: PEFT files, preflight, delta geometry, counter-based noise."""

from evolora.adapters.adapter import Adapter, Factors, ModuleSpec
from evolora.adapters.population import Population, Stack, Stacked, as_population

__all__ = ["Adapter", "Factors", "ModuleSpec", "Population", "Stack", "Stacked", "as_population"]
