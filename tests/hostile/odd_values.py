"""Values that JSON can hold and that no field expects."""

from random import Random
from typing import Any

ODD_NUMBERS = (0, -1, 1, 2, 3, 7, 255, 2**31, 2**32, 2**63, 2**64, 10**12, 10**30, -(2**63))
ODD_REALS = (0.0, -0.0, 0.5, 1.5, -1.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"))
ODD_TEXTS = (
    "",
    " ",
    "\x00",
    "\ud800",  # half of a pair
    "\u202e\u0301",
    "\U0001f600" * 3,
    "none",
    "auto",
    "null",
    "1",
    "../../etc/passwd",
    "{{ 7 * 7 }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "a" * 5000,
    '\\"' * 2000,
)


def odd_value(rng: Random, depth: int = 0) -> Any:
    """A number, a text, or a list or an object of such."""
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return rng.choice(ODD_NUMBERS)
    if kind == 3:
        return rng.choice(ODD_REALS)
    if kind in (4, 5):
        return rng.choice(ODD_TEXTS)
    if kind == 6:
        return [odd_value(rng, depth + 1) for _ in range(rng.choice([0, 1, 3, 40]))]
    return {odd_key(rng): odd_value(rng, depth + 1) for _ in range(rng.choice([0, 1, 3]))}


def odd_key(rng: Random) -> str:
    return rng.choice([*ODD_TEXTS, "type", "text", "role", "content", "rope_type", "factor"])


def nested(rng: Random) -> Any:
    """A list or an object of some depth."""
    value: Any = odd_value(rng, depth=3)
    for _ in range(rng.choice([10, 60, 300])):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def damage_json(rng: Random, tree: Any) -> tuple[Any, str]:
    """The same tree with one value replaced, removed or repeated, and what was done."""
    places = list(_places(tree))
    if not places or rng.random() < 0.05:
        return odd_value(rng), "another tree"
    holder, key = rng.choice(places)
    what = rng.random()
    if what < 0.2:
        del holder[key]
        return tree, f"without {key!r}"
    if what < 0.3 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif what < 0.35:
        holder[key] = nested(rng)
    elif what < 0.6 and isinstance(holder[key], int | float):
        holder[key] = _near(rng, holder[key])
    else:
        holder[key] = odd_value(rng)
    return tree, f"{key!r}: {ascii(holder[key])[:60]}"


def _near(rng: Random, number: float) -> float:
    """A value that is wrong by little."""
    return rng.choice([number + 1, number - 1, number * 2, -number, number / 2, str(number)])  # type: ignore[return-value]


def _places(tree: Any) -> Any:
    """Every holder and key of a tree; the inside of long ones is left out."""
    if not isinstance(tree, dict | list):
        return
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in pairs:
        yield tree, key
        if isinstance(value, dict | list) and len(value) < 60:
            yield from _places(value)
