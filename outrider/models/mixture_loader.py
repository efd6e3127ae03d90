"""The stored experts, routers and shared experts of a mixture, as one layer loads them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch

from outrider.distributed.rank_group import RankGroup
from outrider.models.decoder_tensors import (
    ROUTER_BIAS,
    SHARED_GATE,
    expert_family,
    expert_tensors,
)
from outrider.models.expert_config import ExpertsConfig
from outrider.models.expert_tensors import ExpertTensors, sizes_of
from outrider.models.expert_weights import ExpertBytes, PartReader, read_experts
from outrider.models.layers.expert_parallel import divide_experts, held_experts
from outrider.models.layers.gated_activation import Gate, SharedGate
from outrider.models.layers.mlp import FeedForward, Mlp
from outrider.models.layers.moe import MoeMlp
from outrider.models.layers.router import TopKRouter
from outrider.models.model_config import ModelConfig
from outrider.models.noted_linears import NotedLinears
from outrider.ops.linear.linear import BiasedLinear, Linear
from outrider.ops.moe.expert_gate import ExpertBiases
from outrider.ops.moe.expert_stack import expert_storage
from outrider.ops.moe.experts import make_experts
from outrider.ops.moe.weighted_inputs import WeightedInputs


class MixtureReader(PartReader, Protocol):
    """Reads tensors and makes layers of them."""

    def read(self, *names: str) -> torch.Tensor:
        """The tensors, stacked, on the device in the dtype of activations."""
        ...

    def read_wide(self, name: str) -> torch.Tensor:
        """A tensor on the device in float32."""
        ...

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """On the device in the dtype of activations."""
        ...

    def empty_experts(self, shape: tuple[int, ...]) -> torch.Tensor:
        """On the device in the dtype of stored experts."""
        ...

    def gate(self, block: str) -> Gate:
        """The gate of a dense part."""
        ...

    def linear(self, *names: str) -> Linear:
        """One projection for several weights with the same input, stacked."""
        ...


class MixtureLoader:
    """Makes the mixtures of a model."""

    def __init__(
        self,
        config: ModelConfig,  # the share of this rank
        reader: MixtureReader,
        *,
        linears: NotedLinears,
        make_wide_linear: Callable[[torch.Tensor], Linear],  # computes in float32
        ranks: RankGroup,
    ) -> None:
        self._config = config
        self._reader = reader
        self._linears = linears
        self._make_wide_linear = make_wide_linear
        self._ranks = ranks
        experts = config.experts
        self._bytes = ExpertBytes(len(experts.layers) if isinstance(experts, ExpertsConfig) else 0)

    def load(self, layer: str, experts: ExpertsConfig, *, are_stacked: bool) -> MoeMlp:
        """The mixture of one layer, whose tensor names begin with `layer`."""
        tensors = expert_tensors(self._config, experts, are_stacked=are_stacked)
        held = held_experts(experts.num, self._ranks)
        sizes = sizes_of(replace(experts, num=len(held)), self._config.block.hidden)
        reader = self._reader
        gate_up, down = read_experts(reader, tensors, layer, sizes, held, reader.empty_experts)
        self._bytes.add(gate_up, down)
        for name, stack in (("gates and ups of experts", gate_up), ("downs of experts", down)):
            self._linears.note([name], expert_storage(stack))
        biases = self._biases(tensors, layer, held)
        made = make_experts(gate_up, down, gate=experts.gate, biases=biases)
        divided = divide_experts(made, held, self._ranks.experts)
        return MoeMlp(
            router=self._router(layer, experts, tensors),
            experts=WeightedInputs(divided) if experts.has_weighted_inputs else divided,
            shared=self._shared(layer, experts),
        )

    def _biases(self, tensors: ExpertTensors, layer: str, held: range) -> ExpertBiases:
        """Ranks that share every expert add up their outputs: one of them adds the biases."""
        like = self._reader.empty((0,))
        stored = tensors.read_biases(lambda name: self._reader.read_part(layer + name), held)
        gate_up, down = stored.gate_up.to(like), stored.down.to(like)
        if self._ranks.rank and self._ranks.experts is None:
            down = torch.zeros_like(down)
        return ExpertBiases(gate_up, down)

    def _shared(self, layer: str, experts: ExpertsConfig) -> tuple[FeedForward, ...]:
        if not experts.shared:
            return ()
        block = layer + expert_family(self._config).names.shared
        gate, down = self._reader.gate(block), self._reader.linear(block + "down_proj.weight")
        if experts.has_shared_gate:
            share = self._make_wide_linear(self._reader.read_wide(layer + SHARED_GATE))
            gate = SharedGate(gate, share)
        return (Mlp(gate=gate, down=down),)

    def _router(self, layer: str, experts: ExpertsConfig, tensors: ExpertTensors) -> TopKRouter:
        """In float32 where the family computes it so, because near ties of experts are common."""
        reader, bias = self._reader, self._reader.empty((0,)).float()
        if experts.has_bias:
            bias = reader.read_wide(layer + ROUTER_BIAS)
        if expert_family(self._config).routing in ("softmax", "llama4"):
            gate = self._linears(reader.read(layer + tensors.router), [tensors.router])
        else:
            gate = self._make_wide_linear(reader.read_wide(layer + tensors.router))
        if tensors.router_bias:
            gate = BiasedLinear(gate, reader.read(layer + tensors.router_bias))
        return TopKRouter(experts.routing, gate=gate, bias=bias)
