"""What must be equal on both sides of a transfer, by name."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from outrider import __version__
from outrider.config.engine_config import EngineConfig
from outrider.config.settings import Settings
from outrider.disaggregation.page_bytes import PageBytes
from outrider.hub.weights_fingerprint import fingerprint
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.eagle.inspect_head import is_head
from outrider.models.target import read_target
from outrider.runtime.resolve_quantization import resolve_quantization
from outrider.runtime.row_images import RowImages
from outrider.wire.runner_facts import RunnerFacts


def transfer_facts(
    folder: Path,
    config: EngineConfig,
    settings: Settings,
    facts: RunnerFacts,
    *,
    pages: PageBytes,
    rows: RowImages,
) -> dict[str, str]:
    """The facts of this engine."""
    drafter, context = Path(config.draft.drafter), settings.host.max_context
    has_folder = drafter.exists()
    ropes = _ropes(folder, context)
    if has_folder and not is_head(drafter):  # the rope of a head is that of its files
        ropes += _ropes(drafter, context)
    return {
        "version of outrider": __version__,
        "model files": fingerprint(folder),
        "drafter": fingerprint(drafter) if has_folder else config.draft.drafter,
        "dtype": settings.dtype,  # KV of packed, int8 and float32 weights has one type on a CPU
        "dtype of the drafter": config.draft.dtype,
        "device": settings.device.partition(":")[0],
        "attention backend": f"{settings.attention.target}, {settings.attention.draft} (drafter)",
        "rope": _hash(ropes),  # longrope has two, and --max-model-len chooses
        "quantization": resolve_quantization(folder, config.quantization),
        "arithmetic": settings.execution.arithmetic,
        "page size": str(facts.host.page_size),
        "lookahead of the drafter": str(facts.draft.lookahead),
        "type of KV": " ".join(sorted({each.partition("[")[0] for each in pages.layout})),
        "layout of a page": f"{pages.page_bytes} bytes, {_hash(pages.layout)}",
        "layout of a row": f"{rows.row_bytes} bytes, {_hash(rows.layout)}",
        "transfer backend": config.disaggregation.backend,
    }


def _ropes(folder: Path, context: int) -> list[str]:
    """What the layers of a model rotate positions by, in an engine of this context."""
    config = read_target(folder)
    if isinstance(config, V4Config):  # the same in any context
        return []
    return [each.rotation for each in config.within(context).pattern.different_ropes]


def _hash(names: list[str]) -> str:
    return hashlib.sha256(" ".join(names).encode()).hexdigest()[:8]


def difference(theirs: Mapping[str, object], ours: Mapping[str, str]) -> str:
    """The first thing in which a decode engine differs; empty if there is none."""
    for name, here in ours.items():
        there = theirs.get(name, "absent")
        if here != there:
            return (
                f"the decode engine has another {name} ({there}) than the prefill engine ({here}); "
                "start both with the same version, model, drafter and flags"
            )
    return ""
