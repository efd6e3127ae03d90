"""How likely a head finds the texts of its target, with the layers that it captures and others.

The share of accepted drafts hardly changes when every captured layer is off by one, because
neighbouring layers resemble each other. Log-probabilities of the same tokens tell them apart: they
are compared token by token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider.bench.perplexity import PAGE_SIZE, Scorer
from outrider.config.engine_config import Dtype
from outrider.frontend.draft_probe import AnsweredText
from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.models.decoder import Decoder
from outrider.models.decoder_loader import load_decoder
from outrider.models.draft_model import AuxLayers
from outrider.models.eagle.eagle3 import Eagle3Head
from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_loader import load_head
from outrider.models.eagle.inspect_head import is_head
from outrider.models.medusa.inspect_medusa import is_medusa
from outrider.models.target_folder import read_folder

SHIFTS = (-1, 1)
_LEAST = -12.0  # of a log-probability: tokens that a head cannot propose count the same
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedLayers:
    """What a head thinks of the same tokens when it reads neighbouring layers."""

    shift: int  # of every captured layer
    mean: float  # log-probability of a token
    t: float  # its gain over the captured layers, in standard errors


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLikelihood:
    """What a head thinks of the tokens that its target chose."""

    num_tokens: int
    mean: float  # log-probability of a token
    sureness: float  # mean probability of the token that the head would draft
    share: float  # of these tokens that the target chose
    shifts: tuple[ShiftedLayers, ...]  # that exist


def measure_likelihood(
    target_folder: Path, head_folder: Path, texts: Sequence[AnsweredText], dtype: Dtype
) -> HeadLikelihood | None:
    """Load both on the CPU and score the texts; None where layers are not captured or attended."""
    if not texts or not _captures_layers(target_folder, head_folder):
        return None
    target = load_decoder(target_folder, dtype=dtype, device=_CPU)
    head = load_head(
        head_folder, target=target, target_folder=target_folder, dtype="float32", device=_CPU
    )
    assert isinstance(head, Eagle3Head), "its config says so"
    return HeadScorer(target, head, texts).measure()


def _captures_layers(target_folder: Path, head_folder: Path) -> bool:
    """Whether a folder is that of an EAGLE-3 head for a target whose layers all attend."""
    target = read_folder(target_folder)
    if target.config.has_row_state or is_medusa(head_folder) or not is_head(head_folder):
        return False
    config = target.inspect_head(head_folder).config
    if not isinstance(config, HeadConfig) or config.origin.algorithm != "eagle3":
        return False
    return bool(config.aux.aux_layers.layers)


class HeadScorer:
    """Owns the caches of a target and its head for one text at a time."""

    def __init__(self, target: Decoder, head: Eagle3Head, texts: Sequence[AnsweredText]) -> None:
        most = max(len(each.prompt) + len(each.answer) for each in texts)
        self._target = Scorer(target, most)
        self._head = head
        self._texts = texts
        self._num_layers = target.config.num_layers
        facts = head.facts
        layout = KVLayout(
            layers=facts.num_layers,
            vectors=facts.attention.vectors,
            width=facts.attention.width,
            page_size=PAGE_SIZE,
            dtype=target.dtype,
        )
        self._kv = KVPool(layout, num_pages=-(-most // PAGE_SIZE) + 1, device=_CPU)
        rows = target.config.vocab_size
        self._places = torch.full((rows,), -1)  # [vocab] among the head's tokens
        self._places[head.target_ids] = torch.arange(len(head.target_ids))

    @torch.inference_mode()
    def measure(self) -> HeadLikelihood:
        found = {shift: self.scores(shift) for shift in (0, *SHIFTS) if self._exists(shift)}
        given, sureness, share = found[0]
        return HeadLikelihood(
            num_tokens=len(given),
            mean=float(given.mean()),
            sureness=float(sureness.mean()),
            share=float(share.mean()),
            shifts=tuple(
                ShiftedLayers(
                    shift=shift, mean=float(scores.mean()), t=_standard_errors(scores - given)
                )
                for shift, (scores, _, _) in found.items()
                if shift
            ),
        )

    def _exists(self, shift: int) -> bool:
        layers = self._head.facts.aux_layers.layers
        return all(0 <= layer + shift <= self._num_layers for layer in layers)

    def scores(self, shift: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of every token of all answers: its log-probability, the largest one, which is its own."""
        parts = [self._of_text(each, shift) for each in self._texts]
        logs, best, is_best = (torch.cat(each) for each in zip(*parts, strict=True))
        return logs, best, is_best

    def _of_text(
        self, text: AnsweredText, shift: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The head reads token i + 1 and the target's states of token i, and predicts i + 2."""
        tokens = (*text.prompt, *text.answer)
        layers = tuple(layer + shift for layer in self._head.facts.aux_layers.layers)
        aux = self._target.aux_hidden_states(tokens[:-2], AuxLayers(layers=layers))
        plan = self._target.plan(tokens[1:-1])
        states = self._head.forward(plan, self._head.project(aux), self._kv, self._target.attention)
        first = len(text.prompt) - 2  # the row that predicts the first token of the answer
        logits = self._head.logits(states[first:]).float().log_softmax(-1)
        places = self._places[torch.tensor(tokens[first + 2 :])]
        chosen = logits.gather(1, places.clamp_min(0)[:, None]).squeeze(1)
        chosen = chosen.where(places >= 0, _LEAST).clamp_min(_LEAST)
        best, draft = logits.max(-1)
        return chosen, best.exp(), (draft == places).float()


def _standard_errors(gains: torch.Tensor) -> float:
    """The mean gain, in standard errors of it."""
    error = float(gains.std()) / len(gains) ** 0.5
    return float(gains.mean()) / error if error else 0.0
