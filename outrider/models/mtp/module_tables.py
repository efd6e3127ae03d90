"""The draft modules of each family: fields of config.json, tensor names, differences in compute.

A module joins a token with a state, runs one decoder layer like the target's last one, and
normalises the result. The target's lm_head reads it.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNames:
    """Tensors of a module besides its layer, without `.weight`. The last two are optional."""

    join: str  # [hidden, 2 * hidden]
    token_norm: str
    state_norm: str
    output_norm: str
    embedding: str = "embed_tokens"  # if absent: the target's
    head: str = "shared_head.head"  # if absent: the target's


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRules:
    """Differences between the families in how a module computes."""

    is_state_first: bool = False  # the state comes before the token when the two are concatenated
    is_first_blank: bool = False  # the embedding at position 0 is replaced by zeros
    is_chained: bool = True  # module k reads the state of module k - 1, not the target's
    is_state_normed: bool = True  # the next step reads the state after the output norm


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTable:
    """How a family stores its modules.

    {index} counts modules from 0, {layer} counts them from the number of the target's layers.
    """

    counts: tuple[str, ...]  # fields with the number of modules; a file has one of them
    prefix: str  # of the tensors in `names`
    block: str  # of the tensors of the decoder layer
    names: ModuleNames
    rules: ModuleRules = ModuleRules()
    renamed: tuple[
        tuple[str, str], ...
    ] = ()  # our name of a part of the layer, and the stored name

    @property
    def stored_as(self) -> str:
        """The name pattern of the layer tensors, for messages."""
        return re.sub(r"{\w+}", "*", self.block) + "*"

    def owns(self, name: str, num_layers: int) -> bool:
        """Whether a stored tensor belongs to a module of a target with this many layers."""
        return any(
            (found := _pattern(place).match(name)) is not None
            and int(found.groupdict().get("layer", num_layers)) >= num_layers
            for place in (self.prefix, self.block)
        )

    def places(self, index: int, num_layers: int) -> tuple[str, str]:
        """Prefixes of the tensors in `names` and of the decoder layer of a module."""
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
# Like DeepSeek. Engines differ in what a repeated module reads: SGLang passes on the normalised
# state, as here; vLLM the state before the norm. With one step there is no difference.
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
# The decoder of this family is not supported yet. The table is used for the message that says so.
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
# Qwen3-Next has the first count field, Qwen3.5 the second. All modules share `names`.
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
