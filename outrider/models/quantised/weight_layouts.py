"""Which tensors make up a quantised weight, by kind: their suffixes and stored types."""

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.models.quantised.nibble_form import NibbleForm
from outrider.models.quantised.packed_form import PackedForm
from outrider.models.quantised.quantisation import Quantisation
from outrider.models.quantised.scaled_form import MXFP8_BLOCK, ZEROS, ScaledForm
from outrider.models.quantised.stored_kind import MX_GROUP, NVFP4_GROUP, StoredKind
from outrider.models.quantised.word_forms import AwqWords, GptqWords, GroupedWords

V4_SCALE = "scale"  # of the weights of DeepSeek-V4 alone
_SCALES = ("weight_scale_inv", "weight_scale", V4_SCALE)  # of numbers of one byte
_FLOATS = ("F32", "F16", "BF16")
_POWERS = ("F8_E8M0", "U8")  # of two
_INTEGERS = ("I32", "I64")
_WORDS = ("I32",)
# Suffixes that only one family of exporters writes.
_OF_GPTQ = ("qweight", "qzeros")
_OF_COMPRESSED = (
    *("weight_packed", "weight_shape", ZEROS, "weight_g_idx"),
    "weight_global_scale",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLayout:
    """The tensors of one weight. The first suffix is that of its codes."""

    kind: StoredKind
    form: PackedForm
    types: Mapping[str, tuple[str, ...]]  # the types that a tensor may have, by suffix
    optional: tuple[str, ...] = ()

    def marker(self, stored: Mapping[str, str]) -> str:
        """A stored suffix that shows the layout."""
        return next(suffix for suffix in self.types if suffix in stored)


def layout_of(types: Mapping[str, str], quantisation: Quantisation) -> WeightLayout | None:
    """The layout of one module, by suffixes and types of its tensors; None if it is dense."""
    if any(suffix in types for suffix in _OF_GPTQ):
        return _gptq(quantisation)
    weight = types.get("weight")
    if weight == "I8" and ZEROS in types and "weight_packed" not in types:
        return _scaled(weight, "weight_scale", types.get("weight_scale", ""), quantisation)
    if any(suffix in types for suffix in _OF_COMPRESSED):
        return _compressed(types, quantisation)
    if weight == "U8" and ("weight_scale" in types or "weight_scale_2" in types):
        return _nvfp4("weight", "weight_scale_2", is_inverse=False)
    if weight == "I8" and V4_SCALE in types:  # DeepSeek-V4's experts
        form = NibbleForm("weight", V4_SCALE, group=MX_GROUP)
        return WeightLayout(
            kind="mxfp4", form=form, types={"weight": ("I8",), V4_SCALE: ("F8_E8M0",)}
        )
    scales = [suffix for suffix in _SCALES if suffix in types]
    if weight in ("F8_E4M3", "I8") and scales:
        return _scaled(weight, scales[0], types[scales[0]], quantisation)
    return None


def _gptq(quantisation: Quantisation) -> WeightLayout:
    own = {"qweight": _WORDS, "qzeros": _WORDS, "scales": _FLOATS}
    integers = quantisation.integers
    if quantisation.method != "gptq":
        return WeightLayout(kind="awq", form=AwqWords(integers), types=own)
    return WeightLayout(
        kind="gptq",
        form=GptqWords(integers),
        types=own | {"g_idx": _INTEGERS},
        optional=() if integers.needs_order else ("g_idx",),
    )


def _compressed(types: Mapping[str, str], quantisation: Quantisation) -> WeightLayout:
    """The forms of compressed-tensors whose numbers share words or bytes."""
    if types.get("weight_packed") != "U8":
        return _words(quantisation)
    if "weight_global_scale" in types or types.get("weight_scale") == "F8_E4M3":
        return _nvfp4("weight_packed", "weight_global_scale", is_inverse=True)
    form = NibbleForm("weight_packed", "weight_scale", group=MX_GROUP)
    own = {"weight_packed": ("U8",), "weight_scale": _POWERS}
    return WeightLayout(kind="mxfp4", form=form, types=own)


def _words(quantisation: Quantisation) -> WeightLayout:
    integers, optional = quantisation.integers, []
    if not integers.needs_zeros:
        optional.append("weight_zero_point")
    if not integers.needs_order:
        optional.append("weight_g_idx")
    return WeightLayout(
        kind="words",
        form=GroupedWords(integers),
        types={
            "weight_packed": _WORDS,
            "weight_scale": _FLOATS,
            "weight_shape": _INTEGERS,
            "weight_zero_point": _WORDS,
            "weight_g_idx": _INTEGERS,
        },
        optional=tuple(optional),
    )


def _nvfp4(weight: str, whole: str, *, is_inverse: bool) -> WeightLayout:
    return WeightLayout(
        kind="nvfp4",
        form=NibbleForm(weight, "weight_scale", whole, group=NVFP4_GROUP, is_inverse=is_inverse),
        types={weight: ("U8",), "weight_scale": ("F8_E4M3",), whole: _FLOATS},
    )


def _scaled(weight: str, scale: str, scale_type: str, quantisation: Quantisation) -> WeightLayout:
    """Numbers of one byte; powers of two are scales of mxfp8 if config.json knows no others."""
    if weight == "I8":
        return WeightLayout(
            kind="int8",
            form=ScaledForm(scale, ()),
            types={"weight": ("I8",), scale: _FLOATS, ZEROS: ("I8",)},
            optional=() if quantisation.integers.needs_zeros else (ZEROS,),
        )
    is_power = scale_type == "F8_E8M0" and quantisation.kinds == ("mxfp8",)
    if scale_type == "U8" or is_power:
        form = ScaledForm(scale, MXFP8_BLOCK, has_blocks_only=True)
        return WeightLayout(kind="mxfp8", form=form, types={"weight": ("F8_E4M3",), scale: _POWERS})
    blocks, is_blocked = quantisation.block, quantisation.method == "fp8"
    form = ScaledForm(scale, blocks, has_blocks_only=is_blocked and bool(blocks))
    own = {"weight": ("F8_E4M3",), scale: (*_FLOATS, "F8_E8M0")}
    return WeightLayout(kind="fp8", form=form, types=own)
