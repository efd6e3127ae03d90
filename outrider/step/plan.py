"""A step on the device: views at fixed addresses, all of them written in every step."""

from dataclasses import dataclass

from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows, Queries, Sampled
from outrider.step.input_embeds import InputEmbeds
from outrider.step.rotary_axes import RotaryAxes
from outrider.step.shape import StepShape


class AttentionPlan:
    """A backend's part of a plan. Each backend has its own subclass and reads no other."""

    __slots__ = ()


class DraftPlan:
    """A drafter's part of a plan. Each drafter has its own subclass and reads no other."""

    __slots__ = ()


class NoDraftPlan(DraftPlan):
    """The part of drafters without a model, and of plans without a drafter."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Everything a program may read besides weights and device tables."""

    shape: StepShape
    queries: Queries
    decode: DecodeRows
    chunk: ChunkRows
    sampled: Sampled
    attention: AttentionPlan
    draft: DraftPlan
    embeds: InputEmbeds
    axes: RotaryAxes
