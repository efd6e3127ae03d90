"""Stored scales that no weight needs: those of activations, and those of keys and values."""

from collections.abc import Collection, Iterable

from outrider.models.quantised.stored_kv_scales import ATTENTION, attention_of

# Activations are computed in their own type here, so their scales are not used.
_OF_ACTIVATIONS = (
    *("input_scale", "activation_scale", "input_global_scale"),
    "input_zero_point",  # of compressed-tensors, where activations are not symmetric
)
_OF_QUERIES = ATTENTION + "q_scale"  # of compressed-tensors


def scales_of_activations(names: Iterable[str], modules: Collection[str]) -> set[str]:
    """Those that lie beside a quantised weight, or in its attention module.

    `modules` are those of quantised weights.
    """
    attentions = {module.rpartition(".")[0] for module in modules}
    found = set()
    for name in names:
        module, _, suffix = name.rpartition(".")
        is_of_queries = name.endswith(_OF_QUERIES) and module in attentions
        if is_of_queries or (suffix in _OF_ACTIVATIONS and module in modules):
            found.add(name)
    return found


def scales_of_keys(names: Collection[str]) -> set[str]:
    """Those of an attention module that has other tensors, too."""
    places = {name: attention_of(name) for name in names}
    others = {_through_attention(name) for name, place in places.items() if not place}
    return {name for name, place in places.items() if place and place in others}


def _through_attention(name: str) -> str:
    """The name to the end of its attention module, with a dot; the whole name if it has none."""
    before, end, _ = name.partition(ATTENTION)
    return before + end
