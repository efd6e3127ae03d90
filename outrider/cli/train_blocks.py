"""`outrider train dflash` and `dspark`: heads that draft a block in one pass."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from outrider.cli.flags import expand_flags
from outrider.cli.train_flags import Out, OwnTraining, TrainFlags, head_flag, training_flag
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.train.head_design import BlockDesign

Layers = Annotated[int, head_flag("Decoder layers.", min=1)]
Block = Annotated[int, head_flag("Slots that it runs at once.", min=2, max=64)]
MarkovRank = Annotated[int, head_flag("Rank of what the token before adds; 0: nothing.", min=0)]
Confidence = Annotated[bool, head_flag("It also estimates the chance of its drafts.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFlags:
    """Flags of all heads with blocks whose default does not depend on the kind."""

    causal: Annotated[bool, head_flag("A slot reads no later ones.")] = False
    anchors: Annotated[int, training_flag("Blocks trained in each sequence.", min=1)] = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """The sizes whose default depends on the kind of head, and what its slots predict."""

    layers: int
    block: int
    markov_rank: int
    is_next: bool  # a slot predicts the next token, not its own
    has_confidence: bool = False

    @property
    def num_drafts(self) -> int:
        return self.block if self.is_next else self.block - 1


@expand_flags
def dflash(
    out: Out, *, flags: TrainFlags, layers: Layers = 5, block: Block = 8, block_flags: BlockFlags
) -> None:
    """Train a DFlash head: a block of slots that predict their own tokens."""
    sizes = BlockShape(layers=layers, block=block, markov_rank=0, is_next=False)
    _train(out, flags, block_flags, sizes)


@expand_flags
def dspark(
    out: Out,
    *,
    flags: TrainFlags,
    layers: Layers = 2,
    block: Block = 7,
    markov_rank: MarkovRank = 64,
    confidence: Confidence = True,
    block_flags: BlockFlags,
) -> None:
    """Train a DSpark head: slots predict the next token, and the token before helps."""
    sizes = BlockShape(
        layers=layers,
        block=block,
        markov_rank=markov_rank,
        is_next=True,
        has_confidence=confidence,
    )
    _train(out, flags, block_flags, sizes)


def _train(out: Path, flags: TrainFlags, block_flags: BlockFlags, sizes: BlockShape) -> None:
    if flags.length < sizes.num_drafts + 2:
        raise ConfigError(
            f"--length {flags.length} leaves no room for {sizes.num_drafts} drafts; raise it"
        )

    def design() -> "BlockDesign":
        from outrider.train.head_design import BlockDesign

        return BlockDesign(
            layers=sizes.layers,
            block=sizes.block,
            is_next=sizes.is_next,
            is_causal=block_flags.causal,
            markov_rank=sizes.markov_rank,
            has_confidence=sizes.has_confidence,
            intermediate=flags.intermediate,
            heads=flags.heads,
            kv_heads=flags.kv_heads,
        )

    flags.train(out, OwnTraining(depth=sizes.num_drafts, anchors=block_flags.anchors), design)
