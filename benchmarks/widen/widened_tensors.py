"""The tensors of a wide model, made one at a time from a small one's."""

import re
from collections.abc import Mapping

import torch

from benchmarks.widen.fit_body import IDENTITY, Fit
from benchmarks.widen.places import (
    NOWHERE,
    HeadPlaces,
    Noise,
    Shape,
    WidenPlace,
    side_by_side,
    widen_linear,
    widen_norm,
)
from outrider.models.decoder_tensors import tensor_shapes
from outrider.models.model_config import AttentionConfig
from outrider.models.tensor_cut import WHOLE, Cut
from outrider.models.tensor_source import TensorSource
from outrider.ops.linear.any_weight import AnyWeight

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_NORM = "model.norm.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_WRITERS = ("o_proj.weight", "down_proj.weight")  # what they give is added to the stream

# The constant channel leaves the final norm as c * _BAR * sqrt(H/h) / rms, and gives added tokens
# -_BAR times that: far below any score while the rms of the last state is in the thousands.
_BAR = 2.0**15


class WideTensors:
    """A source for the builder of decoders. It reads the small model and holds nothing."""

    def __init__(self, fit: Fit, small: TensorSource, noise: Noise) -> None:
        self._fit = fit
        self._small = small
        self._noise = noise
        self._shapes = tensor_shapes(fit.wide)
        hidden = fit.small.block.hidden
        self._places = layer_places(
            fit.small.plain_attention,
            fit.wide.plain_attention,
            channels=hidden,
            hidden=fit.wide.block.hidden,
            intermediate=fit.small.block.intermediate,
            reads=side_by_side(hidden, parts=1, width=fit.wide.block.hidden),
        )

    def read(self, name: str, cut: Cut = WHOLE) -> torch.Tensor:
        """A part of the tensor of this name, on the device and in the type of the noise."""
        return cut.of(self._read(name))

    def read_weight(self, name: str, cut: Cut = WHOLE) -> AnyWeight:
        return self.read(name, cut)

    def _read(self, name: str) -> torch.Tensor:
        match = _LAYER.fullmatch(name)
        if match:
            return self._layer(name, self._fit.layers[int(match[1])], match[2])
        return {EMBEDDING: self._embedding, HEAD: self._head, _NORM: self._norm}[name]()

    def _layer(self, name: str, layer: int, rest: str) -> torch.Tensor:
        shape = self._shapes[name]
        if layer == IDENTITY:
            return _idle(name, shape, self._noise)
        block = self._small.read(f"model.layers.{layer}.{rest}")
        return widen_layer(name, rest, block, shape, self._places, self._noise)

    def _embedding(self) -> torch.Tensor:  # [V, H]
        small = self._small.read(EMBEDDING)
        wide = widen_embedding(small, self._shapes[EMBEDDING], self._noise)
        if self._fit.constant:
            wide[:, small.shape[1]] = self._fit.constant
        return wide

    def _norm(self) -> torch.Tensor:  # [H]
        small, width = self._small.read(_NORM), self._fit.wide.block.hidden
        wide = widen_norm(_NORM, small, parts=1, width=width, noise=self._noise)
        wide[small.shape[0] : small.shape[0] + 1] = _BAR if self._fit.constant else 0.0
        return wide

    def _head(self) -> torch.Tensor:  # [V, H]
        small = self._small.read(EMBEDDING if self._fit.small.is_tied else HEAD)
        vocab, channels = small.shape
        wide = self._noise.linear(HEAD, self._shapes[HEAD])
        wide[:, : channels + 1] = 0.0
        wide[:vocab, :channels] = self._noise.cast(small)
        wide[vocab:, channels : channels + 1] = -_BAR
        return wide


def layer_places(
    small: AttentionConfig,
    wide: AttentionConfig,
    *,
    channels: int,  # used in the residual stream
    hidden: int,  # width of the residual stream
    intermediate: int,  # used units of the feed-forward part
    reads: torch.Tensor,  # [read by attention] where the used channels are in what it reads
) -> dict[str, WidenPlace]:
    """The place of every linear of a layer. Unused channels are read by noise and never written."""
    heads = HeadPlaces(small, wide)
    stream, units = torch.arange(channels), torch.arange(intermediate)
    every = torch.arange(hidden)

    def reader(
        rows: torch.Tensor,
        columns: torch.Tensor,
        silent: torch.Tensor = NOWHERE,
        scale: float = 1.0,
    ) -> WidenPlace:
        return WidenPlace(
            rows=rows, columns=columns, silent_rows=silent, silent_columns=NOWHERE, scale=scale
        )

    return {
        # Keys have noise in unused dims, which is multiplied by zeros of the queries.
        "self_attn.q_proj.weight": reader(
            heads.query, reads, silent=heads.silent_query, scale=heads.query_scale
        ),
        "self_attn.k_proj.weight": reader(heads.key, reads),
        "self_attn.v_proj.weight": reader(heads.key, reads),
        "self_attn.o_proj.weight": reader(stream, heads.query, silent=every),
        "mlp.gate_proj.weight": reader(units, stream),
        "mlp.up_proj.weight": reader(units, stream),
        "mlp.down_proj.weight": reader(stream, units, silent=every),
    }


def widen_layer(
    name: str,
    rest: str,  # the name within the layer
    block: torch.Tensor,
    shape: Shape,
    places: Mapping[str, WidenPlace],
    noise: Noise,
) -> torch.Tensor:
    """A linear of a layer at its place, or a norm over more channels."""
    if rest in places:
        return widen_linear(name, block, shape, places[rest], noise)
    return widen_norm(name, block, parts=1, width=shape[0], noise=noise)


def widen_embedding(
    block: torch.Tensor,  # [v, h]
    shape: Shape,  # (V, H)
    noise: Noise,
) -> torch.Tensor:  # [V, H]
    """Embeddings whose unused channels are zero; added tokens are never looked up."""
    wide = noise.zeros(shape)
    wide[: block.shape[0], : block.shape[1]] = noise.cast(block)
    return wide


def _idle(name: str, shape: Shape, noise: Noise) -> torch.Tensor:
    """A tensor of a layer that computes as much as the others, and adds zero."""
    if name.endswith(_WRITERS):
        return noise.zeros(shape)
    return noise.norm(name, shape[0]) if len(shape) == 1 else noise.linear(name, shape)
