"""One step of training: the target reads, the head is fed with itself, the weights move."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_tensors import HEAD
from outrider.train.acceptance_meter import AcceptanceMeter, TrainingMetrics
from outrider.train.batches import TrainingBatch, make_batch
from outrider.train.head_optimizer import HeadOptimizer
from outrider.train.loss import LOSSES, Loss
from outrider.train.packed_attention import AttentionKind, make_attention
from outrider.train.packed_target import PackedTarget
from outrider.train.packing import PackedDocuments, padded
from outrider.train.recipe import LearningRates, Recipe, rate_at, scores_rate_at
from outrider.train.training_head import HeadInputs, TrainingHead, initial_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlacement:
    """Where and in which form a run computes; none of it changes what is learnt."""

    device: torch.device
    dtype: torch.dtype  # of activations; the weights that move are float32
    attention: AttentionKind
    is_compiled: bool  # the losses


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """What is trained, for what."""

    target_folder: Path
    config: HeadConfig
    ids: torch.Tensor  # [draft_vocab] the target's ids of the head's tokens, on the CPU


class Trainer:
    """Owns the weights and the optimizer's memory of them."""

    def __init__(
        self, subject: HeadSpec, recipe: Recipe, rates: LearningRates, placement: TrainingPlacement
    ) -> None:
        self.recipe, self.rates = recipe, rates
        self._placement = placement
        device = placement.device
        self._target = PackedTarget(subject.target_folder, dtype=placement.dtype, device=device)
        self._head = TrainingHead(subject.config, embedding=self._target.embedding)
        self._aux_layers = subject.config.aux.aux_layers.layers
        self._ids = subject.ids.to(device)
        self._loss = _loss(recipe, placement)
        self.weights = initial_weights(subject.config, self._target, self._ids, seed=recipe.seed)
        self._optimizer = HeadOptimizer(self.weights, rates.optimizer)

    def step(
        self, number: int, packed: PackedDocuments, meters: Sequence[AcceptanceMeter] = ()
    ) -> torch.Tensor:
        """Move the weights once; the loss before that."""
        body, scores = self._rates_at(number)
        loss = self._run(packed, meters)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.weights.values(), self.rates.clip)
        self._optimizer.move(body=body, scores=scores)
        return loss.detach()

    @torch.no_grad()
    def examine(self, packed: PackedDocuments) -> TrainingMetrics:
        """How the head does on sequences it is not trained on."""
        meter, size = self.meter(), self.recipe.batch
        for start in range(0, len(packed), size):
            some = packed.take(np.arange(start, min(start + size, len(packed))))
            self._run(padded(some, size), (meter,))
        return meter.read()

    def meter(self) -> AcceptanceMeter:
        return AcceptanceMeter(self._ids, depth=self.recipe.depth)

    def is_finite(self) -> bool:
        sums = torch.stack([each.detach().sum() for each in self.weights.values()])
        return bool(sums.isfinite().all())

    def memory(self) -> dict[str, torch.Tensor]:
        """Weights and the optimizer's state, by name, on the CPU."""
        held = {f"weights.{name}": each.detach() for name, each in self.weights.items()}
        held |= self._optimizer.memory()
        return {name: each.to("cpu").contiguous() for name, each in held.items()}

    def remember(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Go on from what another trainer knew."""
        with torch.no_grad():
            for name, each in self.weights.items():
                each.copy_(memory[f"weights.{name}"])
        self._optimizer.remember(memory)

    def _run(self, packed: PackedDocuments, meters: Sequence[AcceptanceMeter]) -> torch.Tensor:
        """The loss of a batch over all depths."""
        depth, placement = self.recipe.depth, self._placement
        batch = make_batch(packed, depth=depth, device=placement.device)
        attention = make_attention(placement.attention, batch.documents)
        states = self._target.run(batch.tokens, batch.positions, attention, self._aux_layers)
        hidden = states.hidden.flatten(0, 1).index_select(0, batch.anchors.graded)
        teacher = self._target.teach(hidden, self._ids)
        weights = {name: each.to(placement.dtype) for name, each in self.weights.items()}
        reading = HeadInputs(
            aux_hidden_states=states.aux_hidden_states,
            tokens=batch.tokens,
            positions=batch.positions,
            attention=attention,
        )
        for meter in meters:
            meter.begin(batch)
        losses = []
        for step, normed in enumerate(self._head.unroll(weights, reading, depth=depth)):
            rows, grades = batch.anchors.rows[step], batch.anchors.grades[step]
            logits = F.linear(normed.flatten(0, 1).index_select(0, rows), weights[HEAD])
            each = self._loss(logits, teacher.probabilities.index_select(0, grades))
            losses.append((each * teacher.is_known.index_select(0, grades)).sum())
            for meter in meters:
                meter.note(step, logits.detach(), batch, teacher)
        loss = self._weighed(losses, batch)
        for meter in meters:
            meter.end(loss)
        return loss

    def _weighed(self, losses: list[torch.Tensor], batch: TrainingBatch) -> torch.Tensor:
        """All depths together, per anchor: deep rows that do not exist count as learnt."""
        num_anchors = max(batch.anchors.rows[0].shape[0], 1)
        factors = [self.recipe.decay**step / num_anchors for step in range(len(losses))]
        return torch.stack([f * each for f, each in zip(factors, losses, strict=True)]).sum()

    def _rates_at(self, step: int) -> tuple[float, float]:
        """Of the body and of the scores, which are frozen at first."""
        scores = scores_rate_at(step, self.recipe, self.rates)
        self.weights[HEAD].requires_grad_(scores > 0)
        return rate_at(step, self.recipe, self.rates), scores


def _loss(recipe: Recipe, placement: TrainingPlacement) -> Loss:
    loss = LOSSES[recipe.loss]
    return torch.compile(loss, dynamic=True) if placement.is_compiled else loss
