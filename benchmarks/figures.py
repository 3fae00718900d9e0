"""What `chunk_speed.py` is held against: its figures of merit, and the rows of peers measured apart."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HAND = "hand-written loop"
PER_SYNAPSE = ("drtrl", "eprop")
SPARSE = "sparse products K=16"
PEER_RULE = "braintrace D-RTRL"


class Figure(NamedTuple):
    """A ratio of two rows of a work and its bound: at most, or at least for how many times faster."""

    work: str
    text: str
    numerator: str
    denominator: str
    bound: float
    at_most: bool = True


FIGURES = (
    Figure("a", "OTTT K=16 / hand-written loop", "ottt K=16", HAND, 0.95),
    *(
        Figure("c", f"{rule} K=1 / K=32, times faster", f"{rule} K=1", f"{rule} K=32", 25, False)
        for rule in PER_SYNAPSE
    ),
    Figure("a", "braintrace D-RTRL / drtrl K=32, times faster", PEER_RULE, "drtrl K=32", 100, False),
    Figure("c", "braintrace D-RTRL / drtrl K=32, times faster", PEER_RULE, "drtrl K=32", 30, False),
    *(
        Figure(work, f"{rule} K={chunk} / OTTT K={base}", f"{rule} K={chunk}", f"ottt K={base}", bound)
        for work, limit in (("a", 2.5), ("c", 2.0))
        for rule in PER_SYNAPSE
        for chunk, base, bound in (("32", "1", limit), ("32", "32", limit), ("T", "1", 1.3), ("T", "T", 1.3))
    ),
    Figure("b", "OTTT / hand-written loop", "ottt best", HAND, 0.5),
    Figure("c", "OTTT / hand-written loop", "ottt best", HAND, 0.7),
    Figure("d", "dense products K=16 / sparse products K=16, times faster", "products K=16", SPARSE, 4, False),
    Figure("d", "dense products K=16 / OTTT, times faster", "products K=16", "ottt best", 4, False),
)
"""The ratios that the chunkwise engine is built for."""


def figures_of(work: str, steps: int, milliseconds: Mapping[str, float], peers: Mapping[str, float]) -> list[list[str]]:
    """Return a row for each figure of `work` whose two rows were measured: text, ratio, bound, whether reached."""
    known = {**milliseconds, **peers}
    best = min((name for name in known if name.startswith("ottt")), key=known.__getitem__, default="")

    def row_of(name: str) -> str:
        return best if name == "ottt best" else name.replace("K=T", f"K={steps}")

    rows = []
    for figure in (figure for figure in FIGURES if figure.work == work):
        above, below = row_of(figure.numerator), row_of(figure.denominator)
        if above in known and below in known:
            ratio = known[above] / known[below]
            reached = ratio <= figure.bound if figure.at_most else ratio >= figure.bound
            chosen = f" ({best})" if "ottt best" in (figure.numerator, figure.denominator) else ""
            bound = f"at {'most' if figure.at_most else 'least'} {figure.bound:g}"
            rows.append([figure.text + chosen, f"{ratio:.2f}", bound, "reached" if reached else "not reached"])
    return rows


def peers_of(files: Iterable[str], conditions: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """Return ms per step of the peers that were measured under `conditions`, and why other lines are left out.

    A line is a JSON object: `peer` its name, `milliseconds_per_step`, and the conditions `work`, `steps`, `batch`,
    `threads`; or `peer` and `missing`, what stops it. Lines about other works are passed over.
    """
    found: dict[str, float] = {}
    refused: list[str] = []
    for file in files:
        for line in Path(file).read_text().splitlines():
            entry = json.loads(line)
            if "missing" in entry:
                refused.append(f"{entry['peer']}: {entry['missing']}")
            elif entry["work"] == conditions["work"]:
                other = {key: entry[key] for key, value in conditions.items() if entry[key] != value}
                if other:
                    refused.append(f"{entry['peer']} of {file}, measured with {other} where we have {dict(conditions)}")
                else:
                    found[entry["peer"]] = entry["milliseconds_per_step"]
    return found, refused
