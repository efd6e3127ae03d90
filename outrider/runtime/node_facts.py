"""What must be equal on all machines that compute one model: versions, files and settings."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from outrider import __version__
from outrider.config.engine_config import EngineConfig

_WEIGHTS = (".safetensors", ".gguf", ".bin")
_SAMPLE_BYTES = 2**16


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


def fingerprint(path: Path) -> str:
    """Of the configuration, and of sizes and samples of weight files. All bytes take minutes."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = hashlib.sha256()
    for each in files:
        if each.name.endswith(_WEIGHTS):
            found.update(f"{each.name} {each.stat().st_size}\n".encode())
            found.update(_sample(each))
        elif each.name == "config.json":
            found.update(each.read_bytes())
    return found.hexdigest()[:16]


def _sample(file: Path) -> bytes:
    """Bytes from the begin, the middle and the end: other weights have others somewhere there."""
    last = max(file.stat().st_size - _SAMPLE_BYTES, 0)
    found = b""
    with file.open("rb") as opened:
        for start in (0, last // 2, last):
            opened.seek(start)
            found += opened.read(_SAMPLE_BYTES)
    return found
