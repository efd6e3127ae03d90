"""Builds a draft head from its folder. Refuses every head that `inspect_head` refuses."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from outrider.config.engine_config import Arithmetic
from outrider.errors import ConfigError
from outrider.models.decoder import Decoder
from outrider.models.draft_model import AnyDraftModel, ModelFacts
from outrider.models.eagle.eagle import EagleHead, EagleParts
from outrider.models.eagle.eagle3 import Eagle3Head, Eagle3Norms, Eagle3Parts
from outrider.models.eagle.eagle_layer import HeadLayer, apply_padded
from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_tensors import EMBEDDING, HEAD, LAYER
from outrider.models.eagle.inspect_head import open_head
from outrider.models.eagle.token_map import target_ids
from outrider.models.layers.attention_layer import (
    KeyValueProjection,
    NoGate,
    Projection,
    SelfAttention,
    SplitProjection,
)
from outrider.models.layers.gated_activation import gate_of
from outrider.models.layers.mlp import Mlp
from outrider.models.layers.normed_linear import gate_behind, project_behind
from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.linear.choose_linear import WeightType, choose_linear
from outrider.ops.linear.linear import BiasedLinear, Linear
from outrider.ops.norm_rope.head_norm import HeadNorm, NoHeadNorm, NormEachHead
from outrider.ops.norm_rope.rms_norm import Norm, NormLater, make_norm
from outrider.ops.sampling.widen_logits import widen_logits

_ATTENTION = LAYER + "self_attn."
_QKV = ("q_proj", "k_proj", "v_proj")


def load_head(
    folder: Path,
    *,
    target: Decoder,
    target_folder: Path,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
) -> AnyDraftModel:
    """The head in a folder, for a target. It may share weights of the target."""
    head = open_head(folder, target.config, target_folder)
    problems, config = head.report.problems, head.report.config
    if problems or not isinstance(config, HeadConfig):
        more = f" (and {len(problems) - 1} more: see outrider doctor)" if problems[1:] else ""
        raise ConfigError(f"the draft head {folder} is refused: {problems[0]}{more}")
    return build_head(
        config, head.tensors, target, dtype=dtype, device=device, arithmetic=arithmetic
    )


def build_head(
    config: HeadConfig,
    tensors: Mapping[str, torch.Tensor],  # by canonical name
    target: Decoder,
    *,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
) -> AnyDraftModel:
    """A head from tensors that are already checked."""
    return _Builder(
        config, tensors, target, dtype=dtype, device=device, arithmetic=arithmetic
    ).build()


class _Builder:
    """Makes the parts of one head from checked tensors."""

    def __init__(
        self,
        config: HeadConfig,
        tensors: Mapping[str, torch.Tensor],
        target: Decoder,
        *,
        dtype: WeightType,
        device: torch.device,
        arithmetic: Arithmetic,
    ) -> None:
        self._config = config
        self._tensors = tensors
        self._target = target
        self._make_linear = choose_linear(dtype, device, arithmetic)
        self._device = device

    def build(self) -> AnyDraftModel:
        config = self._config
        facts = ModelFacts(
            aux_layers=config.aux.aux_layers,
            width=config.width,
            lead=0,
            num_layers=1,
            attention=config.layer.attention,
            begins_with_forward=True,
        )
        if config.origin.algorithm == "eagle":
            return EagleHead(facts, self._eagle_parts())
        return Eagle3Head(facts, self._eagle3_parts())

    def _eagle_parts(self) -> EagleParts:
        return EagleParts(
            embedding=self._embedding(),
            join=self._linear("fc", has_bias=self._config.aux.has_bias),
            layer=self._layer(),
            score=self._score(),
            target_ids=self._target_ids(),
        )

    def _eagle3_parts(self) -> Eagle3Parts:
        config = self._config
        return Eagle3Parts(
            embedding=self._embedding(),
            project=self._project(),
            layer=self._layer(),
            norms=Eagle3Norms(
                embedding=self._norm(LAYER + "input_layernorm.weight"),
                state=self._norm(LAYER + "hidden_norm.weight"),
                output=self._norm("norm.weight"),
                is_residual_normed=config.layer.is_residual_normed,
                is_state_normed=config.output.is_state_normed,
            ),
            score=self._score(),
            target_ids=self._target_ids(),
        )

    def _embedding(self) -> torch.Tensor:  # [vocab, width]
        shared = self._target.embedding
        if EMBEDDING not in self._tensors:
            return shared
        own = self._read(EMBEDDING)
        return shared if torch.equal(own, shared) else own  # most stored embeddings are copies

    def _score(self) -> Callable[[torch.Tensor], torch.Tensor]:
        if HEAD not in self._tensors:
            return self._target.logits
        head = self._make_linear(self._read(HEAD))
        return lambda state: widen_logits(apply_padded(head, state))

    def _project(self) -> Callable[[torch.Tensor], torch.Tensor]:
        aux = self._config.aux
        if not aux.is_projected:
            return lambda states: states
        project = self._linear("fc", has_bias=False)
        if aux.norm == "joint":
            joint = self._norm("input_norm.weight")
            return lambda states: apply_padded(project, joint(states))
        if aux.norm == "each":
            each, num_aux_layers = self._each_norm(), len(aux.aux_layers.layers)
            return lambda states: apply_padded(
                project,
                each(states.view(-1, num_aux_layers, aux.target_hidden)).flatten(1),
            )
        return lambda states: apply_padded(project, states)

    def _each_norm(self) -> Norm:  # of [n, aux layers, target_hidden]
        names = (
            f"fc_norm.{index}.weight" for index in range(len(self._config.aux.aux_layers.layers))
        )
        weight = torch.stack([self._read(name) for name in names])
        return make_norm(weight, self._config.layer.block.norm_eps)

    def _layer(self) -> HeadLayer:
        config = self._config.layer
        output = self._linear(_ATTENTION + "o_proj", has_bias="o_proj" in config.biased)
        norm, gate = gate_behind(
            self._norm(LAYER + "post_attention_layernorm.weight"),
            gate_of(self._linear(LAYER + "mlp.gate_proj", LAYER + "mlp.up_proj", has_bias=False)),
        )
        return HeadLayer(
            rotary=RotaryEmbedding(
                config.rope,
                head_dim=config.attention.head_dim,
                dtype=self._target.dtype,
                device=self._device,
            ),
            attention=SelfAttention(
                project=self._projection(),
                gate=NoGate(),
                output=output,
                rule=AttentionRule(scale=config.attention.head_dim**-0.5, window=config.window),
            ),
            kv=self._kv_projection(),
            mlp_norm=norm,
            mlp=Mlp(gate=gate, down=self._linear(LAYER + "mlp.down_proj", has_bias=False)),
            min_rows=output.min_rows,
        )

    def _projection(self) -> Projection:
        """The qkv projection. Its input is already normalised."""
        config = self._config.layer
        qkv = self._linear(
            *(_ATTENTION + name for name in _QKV), has_bias="q_proj" in config.biased
        )
        head_norm = self._head_norm(num_queries=config.attention.heads)
        apart = SplitProjection(config.attention, qkv=qkv, head_norm=head_norm)
        return project_behind(NormLater(torch.empty(0, device=self._device)), apart)[1]

    def _kv_projection(self) -> KeyValueProjection:
        """The last rows of the qkv projection. A packed layout has no parts: this is a copy."""
        config = self._config.layer
        kv = self._linear(
            *(_ATTENTION + name for name in _QKV[1:]), has_bias="q_proj" in config.biased
        )
        return KeyValueProjection(config.attention, kv=kv, head_norm=self._head_norm(num_queries=0))

    def _head_norm(self, *, num_queries: int) -> HeadNorm:
        config = self._config.layer
        if not config.has_head_norm:
            return NoHeadNorm()
        query = self._read(_ATTENTION + "q_norm.weight").expand(num_queries, -1)
        key = self._read(_ATTENTION + "k_norm.weight").expand(config.attention.kv_heads, -1)
        return NormEachHead(make_norm(torch.cat([query, key]), config.block.norm_eps))

    def _target_ids(self) -> torch.Tensor:  # [draft_vocab]
        return target_ids(self._tensors, self._config.output).to(self._device)

    def _norm(self, name: str) -> Norm:
        return make_norm(self._read(name), self._config.layer.block.norm_eps)

    def _linear(self, *names: str, has_bias: bool) -> Linear:
        """One projection for several weights with the same input, stacked."""
        linear = self._make_linear(self._read(*(f"{name}.weight" for name in names)))
        if not has_bias:
            return linear
        return BiasedLinear(linear, self._read(*(f"{name}.bias" for name in names)))

    def _read(self, *names: str) -> torch.Tensor:
        """The tensors, stacked, on the device in the target's dtype of activations."""
        stacked = torch.cat([self._tensors[name] for name in names])
        return stacked.to(self._device, self._target.dtype)
