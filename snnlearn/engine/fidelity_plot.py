"""The picture of a fidelity report; matplotlib is loaded when one is drawn, and not before."""

import importlib
import math
from collections.abc import Sequence
from pathlib import Path


def draw_heat_map(
    path: Path,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    marks: Sequence[Sequence[str]],
    title: str,
) -> None:
    """Draw cosines as colours, by their angle, with `marks` written into them, to the file `path`; None is grey.

    `values` (cosines) and `marks` [rows][columns]; the folder is made. The angle tells figures near 1 apart, where the
    cosine is flat; 90 degrees and more have one colour. Raises ImportError where matplotlib is missing.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "map.png"
    >>> draw_heat_map(target, ["w"], ["SLTT"], [[0.5]], [["0.5000"]], "cosine")
    >>> target.stat().st_size > 1000
    True
    """
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ImportError(
            "a picture needs matplotlib, which is not installed; write pip install matplotlib, or take the figures "
            "from print(report) and report.to_csv(path)"
        ) from error
    figure = figures.Figure(figsize=(2.5 + 1.1 * len(columns), 1.6 + 0.42 * len(rows)), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.set_facecolor("0.85")
    angles = [[math.nan if value is None else math.degrees(math.acos(value)) for value in line] for line in values]
    image = axes.imshow(angles, vmin=0.0, vmax=90.0, cmap="viridis_r", aspect="auto")
    axes.set_xticks(range(len(columns)), labels=list(columns), fontsize=7)
    axes.set_yticks(range(len(rows)), labels=list(rows), fontsize=7)
    for row, line in enumerate(marks):
        for column, mark in enumerate(line):
            shade = "white" if angles[row][column] > 40 else "black"
            axes.text(column, row, mark, ha="center", va="center", fontsize=7, color=shade)
    axes.set_title(title, fontsize=9)
    figure.colorbar(image, ax=axes, extend="max", label="angle (degrees)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


__all__ = ["draw_heat_map"]
