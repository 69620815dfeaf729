"""Plots of results, as SVG and PNG."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtests.report import Results


def draw(
    results: Results,
    plot: Callable[[Results, Any], None],
    folder: Path,
    name: str = "plot",
    formats: tuple[str, ...] = ("svg", "png"),
) -> None:
    """Have ``plot`` draw ``results`` into ``folder``. The same results give the same SVG."""
    import matplotlib as mpl  # a second, which whoever draws nothing need not spend
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "oncegate"
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    plot(results, figure.add_subplot())
    for kind in formats:
        figure.savefig(folder / f"{name}.{kind}", dpi=110, metadata={"Date": None} if kind == "svg" else None)
