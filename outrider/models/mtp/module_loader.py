"""Builds draft modules from the target's checkpoint. Their layers are built as the target's."""

from collections.abc import Callable
from pathlib import Path

import torch

from outrider.config.engine_config import Arithmetic
from outrider.models.cut_head import head_cut, make_head
from outrider.models.decoder import Decoder, DecoderLayer
from outrider.models.decoder_loader import build_block
from outrider.models.decoder_tensors import EMBEDDING, HEAD
from outrider.models.draft_model import AuxLayers, ModelFacts
from outrider.models.eagle.eagle_layer import apply_padded
from outrider.models.mtp.inspect_modules import FoundModules, find_modules, stored_name
from outrider.models.mtp.module_chain import ModuleChain
from outrider.models.mtp.mtp_module import ModuleNorms, ModuleParts, MtpModule
from outrider.models.norm_tensors import norm_weight
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.tensor_cut import Cut
from outrider.models.tensor_source import RenamedTensors, TensorSource
from outrider.ops.linear.choose_linear import WeightType, choose_linear
from outrider.ops.norm_rope.rms_norm import Norm, make_norm
from outrider.ops.sampling.widen_logits import widen_logits


def load_modules(
    folder: Path,
    *,
    target: Decoder,
    most: int,
    dtype: WeightType,
    arithmetic: Arithmetic = "fast",
) -> ModuleChain:
    """The first `most` modules in the target's folder. All modules are checked."""
    with Checkpoint(folder, target.config.family.nesting) as checkpoint:
        found = find_modules(folder, target.config, checkpoint)
        return build_modules(
            found, checkpoint, target, most=most, dtype=dtype, arithmetic=arithmetic
        )


def build_modules(
    found: FoundModules,
    source: TensorSource,
    target: Decoder,
    *,
    most: int,
    dtype: WeightType,
    arithmetic: Arithmetic = "fast",
) -> ModuleChain:
    """Modules from tensors that are already checked."""
    builder = _Builder(found, source, target, dtype=dtype, arithmetic=arithmetic)
    modules = tuple(builder.module(index) for index in range(min(most, found.num)))
    config = target.config
    facts = ModelFacts(
        aux_layers=AuxLayers(final=True),
        width=config.block.hidden,
        lead=0,
        num_layers=len(modules),
        attention=target.share.attention,
        begins_with_forward=len(modules) == 1,
    )
    ids = torch.arange(config.vocab_size, device=target.embedding.device)
    return ModuleChain(facts, modules, is_chained=found.table.rules.is_chained, target_ids=ids)


class _Builder:
    """Makes the parts of modules from checked tensors."""

    def __init__(
        self,
        found: FoundModules,
        source: TensorSource,
        target: Decoder,
        *,
        dtype: WeightType,
        arithmetic: Arithmetic,
    ) -> None:
        self._found = found
        self._source = source
        self._target = target
        self._dtype: WeightType = dtype
        self._arithmetic: Arithmetic = arithmetic
        self._device = target.embedding.device
        self._make_linear = choose_linear(dtype, self._device, arithmetic)

    def module(self, index: int) -> MtpModule:
        table, config = self._found.table, self._target.config
        prefix, block = table.places(index, config.num_layers)
        names = table.names
        parts = ModuleParts(
            embedding=self._embedding(f"{prefix}{names.embedding}.weight"),
            norms=ModuleNorms(
                token=self._norm(f"{prefix}{names.token_norm}.weight"),
                state=self._norm(f"{prefix}{names.state_norm}.weight"),
                output=self._norm(f"{prefix}{names.output_norm}.weight"),
            ),
            join=self._make_linear(self._read(f"{prefix}{names.join}.weight")),
            rotary=self._target.rotary,
            block=self._block(block),
            score=self._score(f"{prefix}{names.head}.weight"),
        )
        return MtpModule(table.rules, parts)

    def _block(self, prefix: str) -> DecoderLayer:
        found, config = self._found, self._target.config
        return build_block(
            config.of_modules,
            RenamedTensors(self._source, lambda name: prefix + stored_name(found.table, name)),
            layer=config.attending[-1],
            are_experts_stacked=found.are_experts_stacked,
            dtype=self._dtype,
            device=self._device,
            arithmetic=self._arithmetic,
            ranks=self._target.ranks,
        )

    def _embedding(self, name: str) -> torch.Tensor:  # [vocab, hidden]
        shared = self._target.embedding
        if name not in self._found.own:
            return shared
        own = self._read(name)
        return shared if torch.equal(own, shared) else own  # most stored embeddings are copies

    def _score(self, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        vocab, ranks = self._target.config.vocab_size, self._target.ranks
        cut = head_cut(vocab, ranks)
        if name not in self._found.own or self._is_the_targets(name, cut):
            return self._target.logits
        rows = self._source.read(name, cut).to(self._device, self._target.dtype)
        head = make_head(rows, ranks, vocab_size=vocab, make_linear=self._make_linear)
        return lambda state: widen_logits(apply_padded(head, state))

    def _is_the_targets(self, name: str, cut: Cut) -> bool:
        """Whether a stored head is a copy of the target's, as most are.

        Each rank compares the rows that it scores. Ranks may find different answers: a rank whose
        rows are equal computes the same with either head.
        """
        shared = EMBEDDING if self._target.config.is_tied else HEAD
        return torch.equal(self._source.read(name, cut), self._source.read(shared, cut))

    def _norm(self, name: str) -> Norm:
        config, stored = self._target.config, self._source.read(name)
        weight = norm_weight(stored, config.family, dtype=self._target.dtype, device=self._device)
        return make_norm(weight, config.block.norm_eps)

    def _read(self, name: str) -> torch.Tensor:
        """A tensor on the device in the target's dtype of activations."""
        return self._source.read(name).to(self._device, self._target.dtype)
