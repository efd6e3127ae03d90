"""Draws the picture of the README from `readme_numbers.json`.

Run: python benchmarks/plot_readme.py [FILE.svg]. Needs matplotlib. Equal numbers, equal file.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

_NUMBERS = Path(__file__).with_name("readme_numbers.json")
_PICTURE = Path(__file__).parents[1] / "docs/pictures/speed.svg"
_COLOURS = {"Outrider": "#1f6feb", "vLLM": "#e08a1e", "SGLang": "#8a9199"}
_INK = "#24292f"
_STYLE = {
    "svg.hashsalt": "outrider",  # ids that do not change from run to run
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": "#8a9199",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def main(path: Path) -> None:
    """Draw both steady cases and the load side by side."""
    numbers = json.loads(_NUMBERS.read_text())
    with matplotlib.rc_context(_STYLE):
        figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
        for place, case in zip(axes, numbers["steady"], strict=False):
            _draw_steady(place, case, numbers["requests"])
        _draw_load(axes[2], numbers["load"])
        axes[0].set_ylabel("tokens/s of one request")
        entries = axes[0].get_legend_handles_labels()
        figure.legend(*entries, loc="outside lower center", ncols=len(entries[0]), frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A white card: readable on light and on dark pages alike.
        figure.savefig(path, facecolor="white", metadata={"Date": None})


def _draw_steady(axes: Any, case: dict[str, Any], requests: list[int]) -> None:
    """Bars of tokens/s per request, and a line over each group at what the floor allows."""
    width = 0.8 / len(case["engines"])
    for index, (engine, measured) in enumerate(case["engines"].items()):
        rates = [1000 * case["tokens_per_round"] / ms for ms in measured["step_ms"]]
        places = [group - 0.4 + width * (index + 0.5) for group in range(len(requests))]
        axes.bar(places, rates, width=0.92 * width, color=_colour(engine), label=engine)
        if engine == "Outrider":
            floors = [rate * times for rate, times in zip(rates, case["times_floor"], strict=True)]
    groups = range(len(requests))
    ends = [(group - 0.42, group + 0.42) for group in groups]
    axes.hlines(floors, *zip(*ends, strict=True), color=_INK, linewidth=1.6, label="floor")
    axes.set_xticks(list(groups), [str(num) for num in requests])
    axes.set(title=case["name"], xlabel="requests at a time")


def _draw_load(axes: Any, load: dict[str, Any]) -> None:
    """Bars of tokens/s over all requests, fastest on top."""
    rates = load["tokens_per_s"]
    names = list(rates)[::-1]
    bars = axes.barh(
        names, [rates[name] for name in names], color=[_colour(name) for name in names]
    )
    axes.bar_label(bars, labels=[f"{rates[name]:,}" for name in names], padding=3)
    axes.set(title=load["name"], xlabel="tokens/s of all requests", xticks=[0, 5000, 10000])
    axes.margins(x=0.2)


def _colour(engine: str) -> str:
    [colour] = [value for name, value in _COLOURS.items() if engine.startswith(name)]
    return colour


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else _PICTURE)
