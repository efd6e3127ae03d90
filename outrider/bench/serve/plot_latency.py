"""A picture of a run: TTFT and ITL distributions, throughput over time. Needs matplotlib."""

from pathlib import Path
from typing import Any

from outrider.bench.serve.load_summary import Spread, course_of
from outrider.bench.serve.serve_report import NUM_BINS, LoadReport

_INCHES = (15, 4.5)
_HISTOGRAM_BINS = 50


def plot_load(report: LoadReport, path: Path) -> None:
    """Draw a run that has answers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    summary = report.summary
    figure, (first, gaps, time) = pyplot.subplots(1, 3, figsize=_INCHES, layout="constrained")
    figure.suptitle(f"{report.model}: {report.args.questions.num} requests, {report.args.pattern}")
    ttfts_s = [answer.timeline.ttft_s for answer in summary.answers]
    itls_s = [gap for answer in summary.answers for gap in answer.timeline.itls_s]
    _distribution(first, ttfts_s, summary.ttft, limit_s=summary.slo.ttft_s)
    first.set(title="time to first token", xlabel="ms", ylabel="requests")
    _distribution(gaps, itls_s, summary.itl, limit_s=summary.slo.tpot_s)
    gaps.set(title="gap between chunks (limit: TPOT's)", xlabel="ms", ylabel="gaps", yscale="log")
    _course(time, report)
    for axes in (first, gaps, time):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _distribution(axes: Any, values_s: list[float], spread: Spread, *, limit_s: float) -> None:
    """A histogram with its percentiles; the limit only where it is in the picture anyway."""
    if not values_s:
        return
    axes.hist([value * 1e3 for value in values_s], bins=_HISTOGRAM_BINS, color="tab:blue")
    lines = {"p50": spread.p50, "p90": spread.p90, "p99": spread.p99}
    for (name, value), style in zip(lines.items(), ("-", "--", ":"), strict=True):
        label = f"{name} {value * 1e3:.1f} ms"
        axes.axvline(value * 1e3, color="black", linestyle=style, label=label)
    if limit_s <= spread.max * 1.2:
        axes.axvline(limit_s * 1e3, color="tab:red", label=f"limit {limit_s * 1e3:g} ms")
    axes.legend()


def _course(axes: Any, report: LoadReport) -> None:
    course = course_of(report.summary, num_bins=NUM_BINS)
    times_s = [(place + 0.5) * course.bin_s for place in range(NUM_BINS)]
    axes.plot(times_s, course.tokens_per_s, color="tab:blue", label="output tok/s")
    axes.set(title="over time", xlabel="s", ylabel="output tok/s")
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    other.plot(times_s, course.running, color="tab:orange", label="running")
    other.set_ylabel("requests running")
    other.set_ylim(bottom=0)
    axes.legend(handles=[*axes.get_lines(), *other.get_lines()], loc="lower center")
