"""A picture of a load: tokens per second by rows, and where the time went. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.bench.churn.churn_run import ChurnRun, PeerRun
from outrider.bench.churn.churn_table import peer_name

_INCHES = (13, 4.8)
_KINDS = {"decode": "tab:blue", "mixed": "tab:orange", "prompts": "tab:green"}


def plot_churn(title: str, runs: Sequence[ChurnRun], peers: Sequence[PeerRun], path: Path) -> None:
    """Draw a load that has run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (speed, shares) = pyplot.subplots(1, 2, figsize=_INCHES, layout="constrained")
    figure.suptitle(title)
    _draw_speeds(speed, runs, peers)
    _draw_shares(shares, runs)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_speeds(axes: Any, runs: Sequence[ChurnRun], peers: Sequence[PeerRun]) -> None:
    """A line for every way and for every peer."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for run in runs:
        lines.setdefault(run.way, []).append((run.rows, run.tokens_per_s))
    for peer in peers:
        if not peer.error:
            lines.setdefault(peer_name(peer), []).append((peer.rows, peer.tokens_per_s))
    for name, points in lines.items():
        rows, speeds = zip(*sorted(points), strict=True)
        style = "o-" if name in {run.way for run in runs} else "x--"
        axes.plot(rows, speeds, style, label=name)
    ticks = sorted({run.rows for run in runs})
    axes.set(title="tokens per second", xlabel="requests at a time", xscale="log", ylim=(0, None))
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_shares(axes: Any, runs: Sequence[ChurnRun]) -> None:
    """A bar for every run: the share of its time in steps of each kind."""
    names = [f"{run.way}, {run.rows}" for run in runs]
    left = [0.0] * len(runs)
    for kind, color in _KINDS.items():
        shares = [
            sum(step.busy_s for step in run.steps if step.kind == kind) / run.time.seconds
            for run in runs
        ]
        axes.barh(names, shares, left=left, color=color, label=kind)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.set(title="share of the time by kind of step", xlim=(0, 1))
    axes.invert_yaxis()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=len(_KINDS))
