"""Draw a training run: loss, accuracy and firing rates over the epochs, from its metrics.jsonl.

python scripts/plot_training.py RUN_FOLDER docs/images/training.png      (needs matplotlib, part of the dev extra)
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def read(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run folder's metrics.jsonl; exits with a message where there is no run."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise SystemExit(f"no metrics.jsonl in {run}: name the folder of a run, such as outputs/DATE/TIME")
    return [json.loads(line) for line in path.read_text().splitlines()]


def draw(records: list[dict[str, Any]], target: Path) -> None:
    """Write the picture of these records to `target`."""
    epochs = [record for record in records if record["kind"] == "epoch"]
    batches = [record for record in records if record["kind"] == "batch"]
    if not epochs:
        raise SystemExit("this run has not finished an epoch: there is nothing to draw yet")
    numbers = [record["epoch"] for record in epochs]
    steps_per_epoch = epochs[0]["step"]
    figure, (loss, accuracy, rates) = plt.subplots(1, 3, figsize=(9, 2.7), dpi=110, layout="constrained")
    loss.plot([b["step"] / steps_per_epoch for b in batches], [b["loss"] for b in batches], lw=1, label="batch")
    splits = [split for split in ("train", "validation") if epochs[0][split] is not None]
    for split in splits:
        if epochs[0][split]["accuracy"] is not None:
            accuracy.plot(numbers, [100 * e[split]["accuracy"] for e in epochs], marker=".", label=split)
    if "validation" in splits:
        loss.plot(numbers, [e["validation"]["loss"] for e in epochs], marker=".", label="validation")
    for block in epochs[0]["train"]["firing_rates"]:
        rates.plot(numbers, [100 * e["train"]["firing_rates"][block] for e in epochs], marker=".", label=block)
    for axes, title in ((loss, "loss"), (accuracy, "accuracy (%)"), (rates, "firing rate (% of steps)")):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch")
        if axes.lines:
            axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    rates.set_ylim(bottom=0)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)


def main() -> None:
    """Read a run, draw it, say where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    draw(read(options.run), options.target)
    print(options.target)


if __name__ == "__main__":
    main()
