"""What the benchmarks share: real-like input, interleaved timing, plain tables, results as JSON."""

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

RESULTS = Path(__file__).resolve().parents[1] / "outputs" / "benchmarks"
# Mean over 100 real N-MNIST test recordings, in 20 bins of 15.5 ms: 3,856 events, 4.7 % of the counts not zero.
EVENTS_PER_RECORDING = 3856


def sparse_counts(steps: int, batch: int, device: torch.device, seed: int = 0) -> Tensor:
    """Draw event counts [steps, batch, 2312] like those of N-MNIST: a moving blob on a 2 x 34 x 34 sensor.

    Poisson counts whose rate falls off with the distance from a centre that drifts over the steps, so that most
    pixels stay silent for the whole sequence, as they do in recordings.
    """
    generator = torch.Generator().manual_seed(seed)
    axis = torch.arange(34.0)
    time_axis = torch.linspace(0, 2 * math.pi, steps)
    start = 17 + 3 * torch.randn(batch, 2, generator=generator)
    row = start[None, :, 0, None] + 4 * time_axis.sin()[:, None, None] - axis
    column = start[None, :, 1, None] + 4 * time_axis.cos()[:, None, None] - axis
    rate = torch.exp(-(row[..., :, None] ** 2 + column[..., None, :] ** 2) / (2 * 5.0**2))
    rate = rate * (EVENTS_PER_RECORDING / steps / 2) / rate.sum((-1, -2), keepdim=True)
    counts = torch.poisson(rate[:, :, None].expand(-1, -1, 2, -1, -1), generator=generator)
    return counts.flatten(2).to(device)


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock reading means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleaved(
    contenders: dict[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Run every contender once per round, in an order that rotates, and return seconds per run.

    Two unmeasured rounds come first. Whatever slows the machine for a while then slows all contenders alike.
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-2, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            synchronize(device)
            begin = time.perf_counter()
            contenders[name]()
            synchronize(device)
            if turn >= 0:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def ratio_of_medians(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Return median(numerator) / median(denominator)."""
    return statistics.median(numerator) / statistics.median(denominator)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a plain-text table, the first column to the left and the others to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(w) if column == 0 else cell.rjust(w) for column, (cell, w) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in [header, *rows])
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def machine(device: torch.device) -> dict[str, object]:
    """Return what the figures were measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "device": f"{device.type} ({name})",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def processor() -> str:
    """Return the model of the processor where Linux tells it, else its kind."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def save(name: str, device: torch.device, result: dict[str, object]) -> None:
    """Write outputs/benchmarks/NAME.json and say where it is."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(device), **result}, indent=2) + "\n")
    print(f"\nresults: {path}")
