"""What the runtime needs of a target, and which decoder a model folder holds."""

from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from outrider.config.engine_config import Arithmetic, Quantization
from outrider.distributed.rank_group import ONE_RANK, RankGroup
from outrider.errors import ConfigError
from outrider.kv.kv_pool import ModelPool
from outrider.models.adapters.adapter_bank import NO_BANK, AdapterWeights, BankSizes
from outrider.models.cache_layout import CacheLayout
from outrider.models.config_fields import read_fields
from outrider.models.decoder import TargetOutput
from outrider.models.decoder_loader import load_decoder
from outrider.models.deepseek_v4.v4_config import V4Config, parse_v4
from outrider.models.deepseek_v4.v4_loader import load_v4
from outrider.models.draft_model import AuxLayers
from outrider.models.layers.reduced_layers import OwnLogits
from outrider.models.model_config import ModelConfig, architecture_of, parse_config
from outrider.models.registry import DEEPSEEK_V4
from outrider.ops.linear.choose_linear import WeightType
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.plan import StepPlan
from outrider.wire.runner_facts import WeightStorage

Pool = TypeVar("Pool", bound=ModelPool)
Planner = TypeVar("Planner", bound=AttentionPlanner)


class TargetConfig(Protocol):
    """The fields that every target's config has."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int:
        """Tokens, prompt and output together."""
        ...

    @property
    def usual_page_size(self) -> int:
        """Tokens per page unless the user sets another number."""
        ...

    @property
    def takes_embeds(self) -> bool:
        """Whether embeddings can stand in place of tokens."""
        ...

    @property
    def has_experts(self) -> bool:
        """Whether tokens choose the weights that they read (a mixture of experts)."""
        ...

    @property
    def has_axes(self) -> bool:
        """Whether rotary positions have three axes (mrope)."""
        ...

    @property
    def has_row_state(self) -> bool:
        """Whether rows have state outside of pages: then drafts are chains, without trees."""
        ...


class Target(Protocol[Pool, Planner]):
    """A model whose tokens the user gets."""

    dtype: torch.dtype  # of activations and of the cache

    @property
    def config(self) -> TargetConfig: ...

    @property
    def embedding(self) -> torch.Tensor: ...  # [vocab, hidden]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:  # [n] -> [n, hidden]
        """What it reads for tokens, where embeddings of requests would stand."""
        ...

    @property
    def storage(self) -> tuple[WeightStorage, ...]:
        """In what form its weights are; empty if that was not noted."""
        ...

    @property
    def adapters(self) -> AdapterWeights:
        """The LoRA adapters of its linear layers, by slot."""
        ...

    def layout(self, *, page_size: int, nodes: int) -> CacheLayout[Pool, Planner]:
        """The layout of its cache, for chains of up to that many nodes."""
        ...

    def forward(
        self, plan: StepPlan, kv: Pool, attention: Planner, aux_layers: AuxLayers
    ) -> TargetOutput:
        """The final hidden state of every query token, and the aux hidden states of `aux_layers`.

        Writes the cache, which its layout opened.
        """
        ...

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, vocab]
        """Logits of the whole vocabulary, before logits processing."""
        ...

    def own_logits(self, hidden_states: torch.Tensor) -> OwnLogits:  # [n, hidden]
        """Those of the tokens that this rank scores, without a collective."""
        ...


# Any target, with any cache: its layout opens the pool and the planner that it takes.
AnyTarget = Target[Any, Any]


def read_target(folder: Path) -> ModelConfig | V4Config:
    """The config of any supported model."""
    fields = read_fields(folder)
    try:
        return parse_v4(fields) if architecture_of(fields) == DEEPSEEK_V4 else parse_config(fields)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from error


def load_target(
    folder: Path,
    *,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
    quantization: Quantization = "none",
    ranks: RankGroup = ONE_RANK,
    bank: BankSizes = NO_BANK,
    max_context: int | None = None,  # of the engine; None: that of the model
) -> AnyTarget:
    """The model in a folder, of any supported architecture."""
    config = read_target(folder)
    if isinstance(config, V4Config):
        if bank.num_slots:
            raise ConfigError("DeepSeek-V4 takes no adapters; leave out --enable-lora")
        if quantization != "none":
            raise ConfigError(
                f"{folder}: --quantization {quantization} is not there for DeepSeek-V4; use the "
                "quantised weights as they are published"
            )
        return load_v4(
            folder, config, dtype=dtype, device=device, arithmetic=arithmetic, ranks=ranks
        )
    return load_decoder(
        folder,
        dtype=dtype,
        device=device,
        arithmetic=arithmetic,
        quantization=quantization,
        ranks=ranks,
        bank=bank,
        max_context=max_context,
    )
