"""What must be equal on both sides of a transfer, by name."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from outrider import __version__
from outrider.config.engine_config import EngineConfig
from outrider.disaggregation.page_bytes import PageBytes
from outrider.runtime.node_facts import fingerprint
from outrider.wire.runner_facts import RunnerFacts


def transfer_facts(
    folder: Path, config: EngineConfig, facts: RunnerFacts, pages: PageBytes
) -> dict[str, str]:
    """The facts of this engine."""
    drafter = Path(config.draft.drafter)
    return {
        "version of outrider": __version__,
        "model files": fingerprint(folder),
        "drafter": fingerprint(drafter) if drafter.exists() else config.draft.drafter,
        "page size": str(facts.host.page_size),
        "lookahead of the drafter": str(facts.draft.lookahead),
        "type of KV": " ".join(sorted({each.partition("[")[0] for each in pages.layout})),
        "layout of a page": _layout(pages),
        "transfer backend": config.disaggregation.backend,
    }


def _layout(pages: PageBytes) -> str:
    """Numbers that a reader can compare, and a hash of all shapes."""
    shapes = hashlib.sha256(" ".join(pages.layout).encode()).hexdigest()[:8]
    return f"{len(pages.parts)} tensors, {pages.page_bytes} bytes, {shapes}"


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
