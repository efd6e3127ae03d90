"""One training step: run the target, unroll the head over all depths, step the optimizer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_tensors import HEAD
from outrider.train.acceptance_meter import AcceptanceMeter, TrainingMetrics
from outrider.train.batches import AnchorChoice, TrainingBatch, make_batch
from outrider.train.head_optimizer import HeadOptimizer
from outrider.train.initial_head import InitialHead
from outrider.train.loss import LOSSES, Loss, confidence_loss
from outrider.train.packed_attention import PackedAttention, make_attention
from outrider.train.packed_target import PackedHiddenStates, PackedTarget, Teacher
from outrider.train.packing import PackedDocuments, padded
from outrider.train.recipe import LearningRates, Recipe, rate_at, scores_rate_at
from outrider.train.state_cache import StateCache
from outrider.train.training_block import TrainingBlock, initial_block_weights
from outrider.train.training_device import TrainingDevice
from outrider.train.training_head import DraftLogits, HeadInputs, TrainingHead, initial_weights

LIKE_EAGLE = ("eagle3", "peagle")  # they read the target's states and tokens in their first layer


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """The head to train, and its target."""

    target_folder: Path
    config: HeadConfig
    ids: torch.Tensor  # [draft_vocab] the target's ids of the head's tokens, on the CPU
    initial: InitialHead | None = None  # None: the weights begin as the target's, or random


class Trainer:
    """Owns the weights of the head and the optimizer."""

    def __init__(
        self,
        spec: HeadSpec,
        recipe: Recipe,
        rates: LearningRates,
        device: TrainingDevice,
        cache: StateCache | None = None,
    ) -> None:
        self.recipe, self.rates = recipe, rates
        self._device, self._cache = device, cache
        self.target = PackedTarget(spec.target_folder, device)
        self._head = _head(spec.config, self.target, device)
        self._aux_layers = spec.config.aux.aux_layers.layers
        self._ids = spec.ids.to(device.device)
        self._loss: Loss = device.fused(LOSSES[recipe.loss], is_ragged=True)
        self._confidence_loss = device.fused(confidence_loss, is_ragged=True)
        self.weights = _initial(spec.config, self.target, self._ids, seed=recipe.seed)
        if spec.initial is not None:
            spec.initial.copy_to(self.weights)
        self._optimizer = HeadOptimizer(
            self.weights, rates.optimizer, is_fused=device.has_fused_optimizer
        )

    def step(
        self,
        number: int,
        packed: PackedDocuments,
        meter: AcceptanceMeter | None = None,
        *,
        sequences: Sequence[int] = (),  # their numbers in the run, by which states are kept
    ) -> torch.Tensor:
        """One optimizer step. Returns the loss before it."""
        recipe, rates = self.recipe, self.rates
        head_rate = scores_rate_at(number, recipe, rates)
        if HEAD in self.weights:
            self.weights[HEAD].requires_grad_(head_rate > 0)
        loss = self._run(packed, meter, seed=(recipe.seed, number), sequences=sequences)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.weights.values(), rates.clip)
        self._optimizer.step(body_rate=rate_at(number, recipe, rates), head_rate=head_rate)
        return loss.detach()

    def evaluate(
        self, packed: PackedDocuments, before_batch: Callable[[], None] = lambda: None
    ) -> TrainingMetrics:
        """The metrics of the head on held-out sequences.

        Gradients stay on: without them, compiled functions would be compiled once more.
        """
        meter, size = self.new_meter(), self.recipe.batch
        for start in range(0, len(packed), size):
            before_batch()
            chosen = packed.take(np.arange(start, min(start + size, len(packed))))
            self._run(padded(chosen, size), meter, seed=(start,))
        return meter.read()

    def new_meter(self) -> AcceptanceMeter:
        return AcceptanceMeter(self._ids, depth=self.recipe.depth)

    @property
    def is_caching(self) -> bool:
        return self._cache is not None

    def is_finite(self) -> bool:
        sums = torch.stack([each.detach().sum() for each in self.weights.values()])
        return bool(sums.isfinite().all())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Weights and optimizer state, by name, on the CPU."""
        tensors = {f"weights.{name}": each.detach() for name, each in self.weights.items()}
        tensors |= self._optimizer.state_dict()
        return {name: each.to("cpu").contiguous() for name, each in tensors.items()}

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Continue from the state of another trainer."""
        with torch.no_grad():
            for name, each in self.weights.items():
                each.copy_(tensors[f"weights.{name}"])
        self._optimizer.load_state_dict(tensors)

    def _run(
        self,
        packed: PackedDocuments,
        meter: AcceptanceMeter | None,
        *,
        seed: tuple[int, ...],
        sequences: Sequence[int] = (),
    ) -> torch.Tensor:
        """The loss of a batch over all depths."""
        depth, device = self.recipe.depth, self._device
        choice = AnchorChoice(num=self.recipe.anchors, seed=seed)
        batch = make_batch(packed, depth=depth, device=device, choice=choice)
        attention = make_attention(device.attention, batch.documents)
        states = self._states(batch, attention, sequences)
        hidden_states = states.hidden_states.flatten(0, 1).index_select(
            0, batch.anchors.teacher_rows
        )
        teacher = self.target.teacher(hidden_states, self._ids)
        weights = {name: each.to(device.dtype) for name, each in self.weights.items()}
        inputs = HeadInputs(
            aux_hidden_states=states.aux_hidden_states,
            tokens=batch.tokens,
            documents=batch.documents,
            positions=batch.positions,
            attention=attention,
        )
        if meter is not None:
            meter.begin(batch)
        losses = []
        drafts = self._head.draft_logits(weights, inputs, batch.anchors, depth=depth)
        for step, draft in enumerate(drafts):
            losses.append(self._loss_at(draft, teacher, batch.anchors.teacher_index[step]))
            if meter is not None:
                meter.add(step, draft, batch, teacher)
        loss = self._weighted_sum(losses, batch)
        if meter is not None:
            meter.end(loss)
        return loss

    def _states(
        self, batch: TrainingBatch, attention: PackedAttention, sequences: Sequence[int]
    ) -> PackedHiddenStates:
        """The target's states of a batch: those that are kept, or new ones."""
        kept = self._cache.read(sequences) if self._cache is not None and sequences else None
        if kept is not None:
            return kept
        states = self.target.forward(batch.tokens, batch.positions, attention, self._aux_layers)
        if self._cache is not None and sequences:
            self._cache.write(sequences, states)
        return states

    def _loss_at(
        self,
        draft: DraftLogits,
        teacher: Teacher,
        index: torch.Tensor,  # [trained] of the teacher's rows
    ) -> torch.Tensor:
        """The loss of all rows at one depth."""
        each = self._loss(draft.tokens, teacher.probabilities, index)
        if draft.confidence.shape[1]:
            known = (draft.confidence, draft.tokens, teacher.probabilities, index)
            each = each + self._confidence_loss(*known)
        return (each * teacher.is_known.index_select(0, index)).sum()

    def _weighted_sum(self, losses: list[torch.Tensor], batch: TrainingBatch) -> torch.Tensor:
        """The loss of all depths per anchor. Rows that are not trained at a depth count as 0."""
        num_anchors = max(batch.anchors.rows[0].shape[0], 1)
        factors = [self.recipe.decay**step / num_anchors for step in range(len(losses))]
        return torch.stack([f * each for f, each in zip(factors, losses, strict=True)]).sum()


def _head(
    config: HeadConfig, target: PackedTarget, device: TrainingDevice
) -> TrainingHead | TrainingBlock:
    if config.origin.algorithm in LIKE_EAGLE:
        return TrainingHead(config, device, embedding=target.embedding)
    return TrainingBlock(config, target, device)


def _initial(
    config: HeadConfig, target: PackedTarget, ids: torch.Tensor, *, seed: int
) -> dict[str, nn.Parameter]:
    if config.origin.algorithm in LIKE_EAGLE:
        return initial_weights(config, target, ids, seed=seed)
    return initial_block_weights(config, target, seed=seed)
