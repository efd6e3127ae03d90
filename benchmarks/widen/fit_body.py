"""Whether a model fits into a larger body, and what the body then is. No torch.

With h of H channels in use, RMSNorm sees a mean square h/H of the small model's, so

    w' x / sqrt(ms h/H + eps h/H)  =  w x / sqrt(ms + eps)    with  w' = w sqrt(h/H)

One more channel holds a constant c from the embedding to the end. The final norm and the head turn
it into low scores of added tokens, so that none is chosen. Its c^2/H in the mean square is taken
out of eps.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError
from outrider.models.expert_config import NoExperts
from outrider.models.model_config import AttentionConfig, ModelConfig, parse_config
from outrider.models.rope_config import RopeConfig
from outrider.models.rope_scaling import LinearScaling, Llama3Scaling, NoScaling, YarnScaling

IDENTITY = -1  # a layer of the body that adds nothing
_COPIED = ("bos_token_id", "eos_token_id", "pad_token_id")
_CONSTANT_SHARE = 64  # the constant is at most sqrt(eps h) over this: eps hardly changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A small model, the wide one that computes the same, and how they correspond."""

    small: ModelConfig
    wide: ModelConfig
    layers: tuple[int, ...]  # [wide layers] which small layer each is, or IDENTITY
    constant: (
        float  # in the channel after the small model's; 0.0: no token is added, no such channel
    )

    @property
    def channel_share(self) -> float:
        """h/H."""
        return self.small.block.hidden / self.wide.block.hidden


def fit(small: ModelConfig, body: ModelConfig, *, name: str) -> Fit:
    """The model in a body of this name. Refuses a model that does not fit."""
    for problem in _misfits(small, body):
        raise ConfigError(f"{name} cannot hold the model: {problem}; use a larger --body")
    constant = _constant(small) if body.vocab_size > small.vocab_size else 0.0
    hidden, wide = small.block.hidden, body.block.hidden
    eps = (small.block.norm_eps * hidden - constant**2) / wide
    fields = body_fields(body, small.rope, eps) | {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": body.num_layers,
        "vocab_size": body.vocab_size,
        "max_position_embeddings": small.max_context,
    }
    return Fit(
        small=small,
        wide=parse_config(fields),
        layers=spread(small.num_layers, body.num_layers),
        constant=constant,
    )


def body_fields(body: ModelConfig, rope: RopeConfig, eps: float) -> dict[str, Any]:
    """Fields of config.json for layers of the body with another model's rotary angles."""
    return {
        "model_type": "llama",
        "hidden_size": body.block.hidden,
        "intermediate_size": body.block.intermediate,
        "num_attention_heads": body.plain_attention.heads,
        "num_key_value_heads": body.plain_attention.kv_heads,
        "head_dim": body.plain_attention.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": eps,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,  # its zeros and the head's noise are different weights
        **_rope_fields(rope),
    }


def model_fields(found: Fit, small_fields: dict[str, Any], *, dtype: str) -> dict[str, Any]:
    """The config.json of the wide model; parsing it gives `found.wide`."""
    wide = found.wide
    return {
        "architectures": ["LlamaForCausalLM"],
        **body_fields(wide, wide.rope, wide.block.norm_eps),
        "num_hidden_layers": wide.num_layers,
        "vocab_size": wide.vocab_size,
        "max_position_embeddings": wide.max_context,
        **{key: small_fields[key] for key in _COPIED if key in small_fields},
        "torch_dtype": dtype,
    }


def attention_misfits(small: AttentionConfig, body: AttentionConfig) -> Iterator[str]:
    """Why heads cannot become heads of the body."""
    if body.head_dim % small.head_dim:
        yield f"its head dim {body.head_dim} is no multiple of the model's {small.head_dim}"
    if body.kv_heads < small.kv_heads:
        yield f"it has {body.kv_heads} key-value heads and the model {small.kv_heads}"
    groups = body.heads // body.kv_heads, small.heads // small.kv_heads
    if groups[0] < groups[1]:
        yield f"its key-value heads serve {groups[0]} query heads each and the model's {groups[1]}"


def size_misfits(sizes: dict[str, tuple[int, int]]) -> Iterator[str]:  # the body's, the model's
    """Which sizes of the body are below the model's."""
    for name, (body, small) in sizes.items():
        if body < small:
            yield f"its {name} is {body} and the model's {small}"


def spread(small: int, wide: int) -> tuple[int, ...]:  # [wide]
    """Small layers among layers that add nothing; the usual aux layers keep their states."""
    cuts = list(zip(_cuts(small), _cuts(wide), strict=True))
    if small < _FEWEST_LAYERS:
        cuts = [(0, 0), (small, wide)]
    layers: list[int] = []
    for (begin, _), (end, until) in itertools.pairwise(cuts):
        layers += range(begin, end)
        layers += [IDENTITY] * (until - len(layers))
    return tuple(layers)


def spread_aux_layers(aux_layers: tuple[int, ...], layers: tuple[int, ...]) -> tuple[int, ...]:
    """After how many wide layers the states are those after this many small ones."""
    small, wide = sum(layer != IDENTITY for layer in layers), len(layers)
    if small >= _FEWEST_LAYERS and aux_layers == usual_aux_layers(small):
        return usual_aux_layers(wide)
    return tuple(layers.index(layer - 1) + 1 if layer else 0 for layer in aux_layers)


def usual_aux_layers(num_layers: int) -> tuple[int, ...]:
    """After how many layers EAGLE-3 heads read, unless their config names other layers."""
    return 2, num_layers // 2, num_layers - 3


_FEWEST_LAYERS = 5  # with fewer, the usual aux layers are not in order


def _cuts(num_layers: int) -> tuple[int, ...]:
    return 0, *usual_aux_layers(num_layers), num_layers


def _misfits(small: ModelConfig, body: ModelConfig) -> Iterator[str]:
    small.check_like_llama("widening")
    is_plain = isinstance(small.experts, NoExperts)
    if small.family.has_qkv_bias or small.family.has_head_norm or not is_plain:
        raise ConfigError(
            "only models without biases, head norms and experts can be widened, and "
            f"{small.family.name} has them; use a Llama"
        )
    yield from rope_misfits(small.rope)
    yield from size_misfits(
        {
            "hidden size": (body.block.hidden, small.block.hidden),
            "intermediate size": (body.block.intermediate, small.block.intermediate),
            "number of layers": (body.num_layers, small.num_layers),
            "vocabulary": (body.vocab_size, small.vocab_size),
        }
    )
    if body.vocab_size > small.vocab_size and body.block.hidden == small.block.hidden:
        yield "tokens can only be added where one more channel than the model's is left"
    yield from attention_misfits(small.plain_attention, body.plain_attention)


def rope_misfits(rope: RopeConfig) -> Iterator[str]:
    """Why angles would change: all scalings but one depend on the frequency alone."""
    if isinstance(rope.scaling, YarnScaling):
        yield "yarn scaling depends on the head dim"


def _rope_fields(rope: RopeConfig) -> dict[str, Any]:
    match rope.scaling:
        case NoScaling():
            return {"rope_theta": rope.theta}
        case LinearScaling(factor=factor):
            scaling: dict[str, Any] = {"rope_type": "linear", "factor": factor}
        case Llama3Scaling() as found:
            scaling = {
                "rope_type": "llama3",
                "factor": found.factor,
                "low_freq_factor": found.low_freq_factor,
                "high_freq_factor": found.high_freq_factor,
                "original_max_position_embeddings": found.original_context,
            }
        case YarnScaling():
            raise AssertionError("refused before")
    return {"rope_theta": rope.theta, "rope_scaling": scaling}


def _constant(small: ModelConfig) -> float:
    """A power of two, which every type holds exactly."""
    most = math.sqrt(small.block.norm_eps * small.block.hidden) / _CONSTANT_SHARE
    return 2.0 ** math.floor(math.log2(most))
