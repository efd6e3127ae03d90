"""Puts the two halves together: an engine that decides, and a runner that computes."""

from pathlib import Path

from outrider.config.engine_config import EngineConfig
from outrider.engine.engine import Engine
from outrider.frontend.tokenizer.read_vocabulary import read_vocabulary
from outrider.runtime.start_runner import OnLoss, ignore_loss, start_runner
from outrider.wire.runner_facts import OnProgress, ignore_progress


def build_engine(
    folder: Path,
    config: EngineConfig,
    on_progress: OnProgress = ignore_progress,
    on_loss: OnLoss = ignore_loss,
) -> Engine:
    """An engine for the model in a folder, ready for requests."""
    runner, facts = start_runner(
        folder,
        config,
        on_progress,
        read_vocabulary=lambda: read_vocabulary(Path(config.tokenizer_folder or folder)),
        on_loss=on_loss,
    )
    return Engine(runner, facts, runner.grammars)
