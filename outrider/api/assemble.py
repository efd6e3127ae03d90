"""Puts the two halves together: an engine that decides, and a runner that computes."""

from pathlib import Path

from outrider.config.engine import EngineConfig
from outrider.engine.engine import Engine
from outrider.runtime.build import build_runner


def build_engine(folder: Path, config: EngineConfig) -> Engine:
    """An engine for the model in a folder, ready for requests."""
    runner, facts = build_runner(folder, config)
    return Engine(runner, facts)
