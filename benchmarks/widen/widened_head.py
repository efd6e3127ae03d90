"""An EAGLE-3 head as wide as a widened target, which proposes what the small head proposes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.widen.fit_body import (
    Fit,
    attention_misfits,
    body_fields,
    rope_misfits,
    size_misfits,
    spread_aux_layers,
    usual_aux_layers,
)
from benchmarks.widen.places import (
    NOWHERE,
    Noise,
    WidenPlace,
    side_by_side,
    widen_linear,
    widen_norm,
)
from benchmarks.widen.widened_tensors import (
    EMBEDDING as TARGET_EMBEDDING,
)
from benchmarks.widen.widened_tensors import (
    HEAD as TARGET_HEAD,
)
from benchmarks.widen.widened_tensors import (
    layer_places,
    widen_embedding,
    widen_layer,
)
from outrider.errors import ConfigError
from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_dialects import parse_head
from outrider.models.eagle.head_tensors import EMBEDDING, HEAD, LAYER, MAPS, expected_tensors
from outrider.models.eagle.inspect_head import open_head
from outrider.models.eagle.token_map import target_ids
from outrider.models.model_config import LatentConfig
from outrider.models.tensor_source import TensorSource
from outrider.train.head_design import token_maps

_AUX_HIDDEN = "fc.weight"
_JOINT = "input_norm.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallHead:
    """A head that fits the small model and can be widened with it."""

    config: HeadConfig
    tensors: Mapping[str, torch.Tensor]  # by canonical name


@dataclass(frozen=True, slots=True, kw_only=True)
class WideHead:
    """A wide head: config.json fields, their parsed form, and the tensors by canonical name."""

    fields: dict[str, Any]
    config: HeadConfig
    tensors: dict[str, torch.Tensor]


def open_small_head(folder: Path, fit: Fit, target_folder: Path) -> SmallHead:
    """The head in a folder, or why it cannot be widened."""
    head = open_head(folder, fit.small, target_folder)
    config = head.report.config
    if head.report.problems or not isinstance(config, HeadConfig):
        raise ConfigError(f"the draft head {folder} is refused: {head.report.problems[0]}")
    for problem in _misfits(config, fit):
        raise ConfigError(f"the draft head {folder} cannot be widened: {problem}; use another")
    return SmallHead(config=config, tensors=head.tensors)


def widen_head(head: SmallHead, fit: Fit, source: TensorSource, noise: Noise) -> WideHead:
    """The head in the body's width; `source` is the small target, whose weights it may share.

    It has the small head's vocabulary, so it never proposes added tokens.
    """
    fields = _fields(head.config, fit)
    tensors = dict(_own_tensors(head, fit, source))
    config = parse_head(fields, tensors.keys(), fit.wide)
    expected = expected_tensors(config, target_hidden=fit.wide.block.hidden)
    widener = _Widener(head.config, fit, noise)
    wide = {
        name: widener.widen(name, tensor, expected.shape(name)) for name, tensor in tensors.items()
    }
    ids = target_ids(head.tensors, head.config.output)
    return WideHead(
        fields=fields, config=config, tensors=wide | token_maps(ids, fit.wide.vocab_size)
    )


def _own_tensors(
    head: SmallHead, fit: Fit, source: TensorSource
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of the wide head: without a copied embedding, with a copy of shared scoring."""
    for name, tensor in head.tensors.items():
        is_copy = name == EMBEDDING and _is_equal(tensor, source.read(TARGET_EMBEDDING))
        if name not in MAPS and not is_copy:
            yield name, tensor
    if HEAD not in head.tensors:
        yield HEAD, source.read(TARGET_EMBEDDING if fit.small.is_tied else TARGET_HEAD)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.to(other.dtype), other)


def _fields(config: HeadConfig, fit: Fit) -> dict[str, Any]:
    """config.json in the layout that SGLang and vLLM share; usual aux layers are left out."""
    wide, layer = fit.wide, config.layer
    eps = layer.block.norm_eps * config.width / wide.block.hidden
    aux_layers = spread_aux_layers(config.aux.aux_layers.layers, fit.layers)
    is_usual = aux_layers == usual_aux_layers(wide.num_layers)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **body_fields(wide, layer.rope, eps),
        "num_hidden_layers": 1,
        "vocab_size": wide.vocab_size,
        "draft_vocab_size": config.output.draft_vocab,
        "max_position_embeddings": config.max_context,
        "norm_before_residual": layer.is_residual_normed,
        "norm_before_fc": config.aux.norm == "joint",
        "fc_norm": config.aux.norm == "each",
        "norm_output": config.output.is_state_normed,
        **({} if is_usual else {"eagle_aux_hidden_state_layer_ids": list(aux_layers)}),
    }


def _misfits(config: HeadConfig, fit: Fit) -> Iterator[str]:
    layer, wide = config.layer, fit.wide
    if config.origin.algorithm != "eagle3" or not config.aux.is_projected:
        yield "it is no EAGLE-3 head that reads states of several layers"
    if layer.biased or layer.has_head_norm:
        yield "it has biases or norms of single heads"
    if config.aux.norm != "none" and config.width != config.aux.target_hidden:
        yield "its norms are over vectors of different widths and share one eps"
    yield from rope_misfits(layer.rope)
    yield from size_misfits(
        {
            "hidden size": (wide.block.hidden, config.width),
            "intermediate size": (wide.block.intermediate, layer.block.intermediate),
        }
    )
    if isinstance(layer.attention, LatentConfig):
        yield "it stores latents"
        return
    yield from attention_misfits(layer.attention, wide.plain_attention)


class _Widener:
    """Knows the place of every tensor of one head."""

    def __init__(self, config: HeadConfig, fit: Fit, noise: Noise) -> None:
        hidden = fit.wide.block.hidden
        self._config = config
        self._hidden = hidden
        self._noise = noise
        self._layer = layer_places(
            config.layer.plain_attention,
            fit.wide.plain_attention,
            channels=config.width,
            hidden=hidden,
            intermediate=config.layer.block.intermediate,
            reads=side_by_side(config.width, parts=2, width=hidden),  # a token and a state
        )

    def widen(self, name: str, block: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        noise, rest = self._noise, name.removeprefix(LAYER)
        if name == EMBEDDING:
            return widen_embedding(block, shape, noise)
        if name == HEAD:
            return widen_linear(name, block, shape, self._score_place(), noise)
        if name == _AUX_HIDDEN:
            return widen_linear(name, block, shape, self._feature_place(), noise)
        if name == _JOINT:
            return widen_norm(
                name, block, parts=self._num_aux_layers, width=self._hidden, noise=noise
            )
        return widen_layer(name, rest, block, shape, self._layer, noise)

    @property
    def _num_aux_layers(self) -> int:
        return len(self._config.aux.aux_layers.layers)

    def _score_place(self) -> WidenPlace:
        return WidenPlace(
            rows=torch.arange(self._config.output.draft_vocab),
            columns=torch.arange(self._config.width),
            silent_rows=NOWHERE,
            silent_columns=NOWHERE,
        )

    def _feature_place(self) -> WidenPlace:
        """The place of `fc`: unused channels of the state stay zero; the constant is not read."""
        channels, width = self._config.aux.target_hidden, self._config.width
        live = side_by_side(channels, parts=self._num_aux_layers, width=self._hidden)
        with_constant = side_by_side(
            min(channels + 1, self._hidden), parts=self._num_aux_layers, width=self._hidden
        )
        return WidenPlace(
            rows=torch.arange(width),
            columns=live,
            silent_rows=torch.arange(width, self._hidden),
            silent_columns=with_constant,
        )
