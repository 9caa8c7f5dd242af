"""Throughput and memory of the engine, as ratios measured within one process."""
