"""Plots of a run: loss, agreement by depth, accept length. Needs matplotlib (extra `train`)."""

from pathlib import Path
from typing import Any

from outrider.config.install_hint import install_hint
from outrider.errors import ConfigError
from outrider.train.training_log import read_metrics

_INCHES = (13, 4)


def plot_run(folder: Path) -> Path:
    """Plot metrics.jsonl as run.png in the same folder."""
    lines = read_metrics(folder / "metrics.jsonl")
    if not lines:
        raise ConfigError(f"{folder} has no metrics.jsonl with numbers; pass the --out of a run")
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(
            f"no picture without matplotlib; {install_hint('train')}, then outrider train "
            f"plot {folder}"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=_INCHES, layout="constrained")
    trained = [line for line in lines if line["kind"] == "train"]
    held_out = [line for line in lines if line["kind"] == "held out"]
    for name, chosen in (("trained on", trained), ("held out", held_out)):
        _curve(left, chosen, lambda line: line["loss"], name)
        _curve(right, chosen, lambda line: line["accept_length"], f"greedy, {name}")
    _curve(right, held_out, lambda line: line["accept_length_sampled"], "sampled, held out")
    for depth in range(len(lines[0]["agreement"])):
        _curve(middle, held_out or trained, lambda line, d=depth: line["agreement"][d], f"{depth}")
    for axes, title in ((left, "loss"), (middle, "agreement by depth"), (right, "accept length")):
        axes.set(title=title, xlabel="step")
        axes.legend()
        axes.grid(alpha=0.3)
    path = folder / "run.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _curve(axes: Any, lines: list[dict[str, Any]], height: Any, label: str) -> None:
    if lines:
        axes.plot([line["step"] for line in lines], [height(line) for line in lines], label=label)
