"""Learning beside a server: what the user sets, and what cannot learn."""

from dataclasses import dataclass

from outrider.config.draft_config import MTP, NONE, TEXT_DRAFTERS
from outrider.config.engine_config import EngineConfig
from outrider.errors import ConfigError

NEWEST = -1  # the version that was in use last


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnConfig:
    """Whether a server trains its draft head, and within which bounds."""

    is_enabled: bool = False
    folder: str = ""  # of the versions; empty: one for this head in the cache
    buffer_bytes: int = 64 * 2**20  # of the texts that are trained on, in memory
    version: int = NEWEST  # to start with; 0: the head before learning


def check_learning(config: EngineConfig) -> None:
    """Refuse a server that cannot train what it drafts with. The drafter is found already."""
    draft, parallel = config.draft, config.parallel
    if draft.drafter in (NONE, MTP, *TEXT_DRAFTERS):
        why = {
            NONE: "nothing is drafted, so there is no head to train",
            MTP: "mtp drafts with modules of the target, which are not trained here",
        }.get(draft.drafter, f"{draft.drafter} looks up text and has no weights to train")
        raise ConfigError(f"--learn: {why}; name a draft head with --draft, or leave out --learn")
    if parallel.tensor * parallel.data * parallel.nodes.num > 1:
        raise ConfigError(
            "--learn works with one process per model; leave out --tensor-parallel-size, "
            "--data-parallel-size and --nnodes, or leave out --learn"
        )
    if config.disaggregation.mode != "null":
        raise ConfigError(
            "--learn needs the whole of each request, and --disaggregation-mode "
            f"{config.disaggregation.mode} has a part; leave out one of them"
        )
