"""What must be equal on all machines that compute one model: versions, files and settings."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from outrider import __version__
from outrider.config.engine_config import EngineConfig
from outrider.hub.weights_fingerprint import fingerprint


def facts_of(folder: Path, config: EngineConfig, *, num_cuda: int) -> dict[str, str]:
    """The facts of this machine by name."""
    drafter = Path(config.draft.drafter)
    facts = {
        "version of outrider": __version__,
        "version of torch": version("torch"),
        "kind of device": "cuda" if num_cuda and config.device != "cpu" else "cpu",
        "model files": fingerprint(folder),
        "draft model files": fingerprint(drafter) if drafter.exists() else config.draft.drafter,
    }
    nodes = replace(config.parallel.nodes, rank=0)
    same = replace(
        config,
        tokenizer_folder="",  # paths differ, and only machine 0 reads text
        limits=replace(config.limits, queued=0),  # of a server's own
        draft=replace(config.draft, drafter="", check=False),  # a replaced worker does not check
        parallel=replace(config.parallel, nodes=nodes),
    )
    return facts | dict(_flatten("", asdict(same)))


def difference(theirs: Mapping[str, str], ours: Mapping[str, str], *, node: int) -> str:
    """The first thing in which a machine differs from machine 0; empty if there is none."""
    for name in (*ours, *theirs):
        here, there = ours.get(name, "absent"), theirs.get(name, "absent")
        if here != there:
            return (
                f"machine {node} has another {name} ({there}) than machine 0 ({here}); start all "
                "machines with the same versions, files and flags"
            )
    return ""


def _flatten(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(f"{prefix}{name}.", value)
        else:
            yield prefix + name, repr(value)
