"""How each family spells its draft modules: fields of config.json, tensor names, small laws.

A module joins a token with a state, runs one block like the target's last one, and normalises what
the target's head then reads.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNames:
    """Tensors of a module besides its block, without `.weight`. The last two may not be stored."""

    join: str  # [hidden, 2 * hidden]
    token_norm: str
    state_norm: str
    output_norm: str
    embedding: str = "embed_tokens"  # else the target's
    head: str = "shared_head.head"  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRules:
    """Where families that compute nearly the same differ."""

    is_state_first: bool = False  # the state stands before the token where the two are joined
    is_first_blank: bool = False  # the token of row 0 counts as zeros
    is_chained: bool = True  # module k reads the state of module k - 1, not the target's
    is_state_normed: bool = True  # what is handed on is what the head reads


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTable:
    """All that sets the modules of a family apart.

    {index} counts modules from 0, {layer} from the number of the target's layers.
    """

    counts: tuple[str, ...]  # fields with the number of modules, of which a file has one
    prefix: str  # of the tensors in `names`
    block: str  # of those of the block
    names: ModuleNames
    rules: ModuleRules = ModuleRules()
    renamed: tuple[tuple[str, str], ...] = ()  # our name of a part of the block, and theirs

    @property
    def stored_as(self) -> str:
        """What the tensors of the blocks are called, for people."""
        return re.sub(r"{\w+}", "*", self.block) + "*"

    def owns(self, name: str, num_layers: int) -> bool:
        """Whether a stored tensor belongs to some module of a target with so many layers."""
        return any(
            (found := _pattern(place).match(name)) is not None
            and int(found.groupdict().get("layer", num_layers)) >= num_layers
            for place in (self.prefix, self.block)
        )

    def places(self, index: int, num_layers: int) -> tuple[str, str]:
        """Prefixes of a module's own tensors and of its block."""
        numbers = {"index": index, "layer": num_layers + index}
        return self.prefix.format(**numbers), self.block.format(**numbers)


@dataclass(frozen=True, slots=True)
class NoModules:
    """The family's checkpoints hold no draft modules."""

    def owns(self, name: str, num_layers: int) -> bool:
        del name, num_layers
        return False


NO_MODULES = NoModules()


def _pattern(place: str) -> re.Pattern[str]:
    """A prefix with any number in the place of {index} or {layer}."""
    escaped = re.escape(place)
    return re.compile(re.sub(r"\\{(index|layer)\\}", r"(?P<\1>\\d+)", escaped))


_NEXTN = ModuleNames(
    join="eh_proj", token_norm="enorm", state_norm="hnorm", output_norm="shared_head.norm"
)

# DeepSeek-V3 and its relatives: modules are stored as layers past the last one.
DEEPSEEK = ModuleTable(
    counts=("num_nextn_predict_layers",),
    prefix="model.layers.{layer}.",
    block="model.layers.{layer}.",
    names=_NEXTN,
)
# As DeepSeek. Engines disagree on what a repeated module reads: SGLang hands on the normalised
# state, as here; vLLM the one before. With one step there is no difference.
GLM4_MOE = DEEPSEEK
MIMO = ModuleTable(
    counts=("num_nextn_predict_layers",),
    prefix="model.mtp_layers.{index}.",
    block="model.mtp_layers.{index}.",
    names=ModuleNames(
        join="input_proj",
        token_norm="token_layernorm",
        state_norm="hidden_layernorm",
        output_norm="final_layernorm",
    ),
    rules=ModuleRules(is_state_first=True, is_first_blank=True),
)
# Not drafted with yet: the body of the family cannot be run. Until then the table says how its
# modules are stored, and that the architecture lacks no more than a body.
MIMO_V2 = ModuleTable(
    counts=("num_nextn_predict_layers",),
    prefix="model.mtp.layers.{index}.",
    block="model.mtp.layers.{index}.",
    names=ModuleNames(
        join="eh_proj", token_norm="enorm", state_norm="hnorm", output_norm="final_layernorm"
    ),
    rules=ModuleRules(is_chained=False),
    renamed=(("post_attention_layernorm", "pre_mlp_layernorm"),),
)
# Qwen3-Next counts by the first field, Qwen3.5 by the second. All modules share what joins.
QWEN3_NEXT = ModuleTable(
    counts=("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    prefix="mtp.",
    block="mtp.layers.{index}.",
    names=ModuleNames(
        join="fc",
        token_norm="pre_fc_norm_embedding",
        state_norm="pre_fc_norm_hidden",
        output_norm="norm",
    ),
)
WITHOUT_BODY = {"MiMoV2FlashForCausalLM": MIMO_V2}
