"""A picture of pgflow's ratio to others, metric by metric."""

from __future__ import annotations

from pathlib import Path

from bench.catalog import COMPILED, LIMIT, METRICS, OURSELVES
from bench.report import Record
from bench.runner import rank


class NoPlot(Exception):
    """Reason why there is no picture."""


def draw(records: list[Record], path: Path) -> None:
    """Writes a PNG: a row a metric that another engine has, a mark an engine, to the right where
    pgflow is ahead.

    Raises:
        NoPlot: matplotlib is not installed, or there is nothing to compare.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise NoPlot('the picture needs matplotlib: pip install "pgflow-engine[bench]"') from None
    mpl.use("agg")
    from matplotlib import pyplot as plt

    compared = [r for r in records if r.behind is not None and r.engine != OURSELVES]
    of_others = {r.metric for r in compared if r.engine != COMPILED}
    if not of_others:
        raise NoPlot("nothing to compare pgflow with")
    metrics = [name for name in METRICS if name in of_others][::-1]
    compared = [r for r in compared if r.metric in of_others]
    engines = sorted({r.engine for r in compared}, key=rank)
    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.3 * len(metrics)), layout="constrained")
    for index, engine in enumerate(engines):
        chosen = [r for r in compared if r.engine == engine]
        marker = "x" if engine == LIMIT else "osD^vPX*"[index % 8]
        axes.scatter(
            [r.behind for r in chosen],
            [metrics.index(r.metric) for r in chosen],
            label=engine,
            marker=marker,
            s=60,
        )
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_ylim(-0.7, len(metrics) - 0.3)
    axes.set_yticks(range(len(metrics)), [METRICS[name].says for name in metrics], fontsize=8)
    axes.grid(visible=True, alpha=0.3)
    axes.set_xlabel("times as good as the other (to the right of 1: pgflow is ahead)")
    figure.legend(loc="outside upper center", ncols=len(engines), fontsize=8)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)
