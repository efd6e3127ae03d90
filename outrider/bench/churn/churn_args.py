"""The parsed flags of `outrider bench offline --churn`. No torch."""

from dataclasses import dataclass

from outrider.bench.churn.churn_work import ChurnWork
from outrider.bench.peers.churn_catalogue import ChurnPackage
from outrider.config.draft_config import DraftConfig
from outrider.config.engine_config import Auto, Dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnPlace:
    """Where the engines run, and with which weights."""

    dtype: Dtype | Auto
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnArgs:
    """The load, our drafter, and the engines beside ours."""

    work: ChurnWork
    draft: DraftConfig  # none, if only plain decoding runs
    place: ChurnPlace
    texts: tuple[str, ...]
    origin: str  # of the texts
    peers: tuple[ChurnPackage, ...]
