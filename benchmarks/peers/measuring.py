"""What the peers share: options, weights, a check against the hand-written loop, and the JSON lines they print."""

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SIZES_OF_LAYERS = {
    "a": [(512, 2312), (512,), (10, 512), (10,)],
    "b": [(32, 2, 3, 3), (32,), (64, 32, 3, 3), (64,), (10, 4096), (10,)],
    "c": [(256, 700), (256, 256), (256,), (20, 256), (20,)],
}
"""Shapes of the weights of each work, in the order of the hand-written loops."""
WIDTHS = {"a": 16, "b": 4, "c": 3}
"""How much wider than torch's own the weights of the hidden layers are."""
ROUNDING = 1e-3


def options_for(description: str | None, works: Sequence[str]) -> argparse.Namespace:
    """Read the command line, and keep this process to as many cores as it may have threads.

    The cores are set before the peer is imported, since XLA counts them when it starts.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=works, default=list(works))
    parser.add_argument("--steps", type=int, help="T, instead of the work's own")
    parser.add_argument("--batch", type=int, help="B, instead of the work's own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rules", nargs="+", help="some of the peer's rows, by a part of their names")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.threads :])
    return options


def missing(peer: str, *modules: str) -> bool:
    """Print a line that says which of `modules` is not installed, if any is not."""
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    if absent:
        names = ", ".join(absent)
        reason = f"{names} not installed: `make peers` installs benchmarks/peers/requirements.txt into outputs/peers"
        print(json.dumps({"peer": peer, "missing": reason}))
    return bool(absent)


def size_of(work: str, options: argparse.Namespace) -> tuple[int, int]:
    """Return T and B."""
    from inputs import SIZES

    return options.steps or SIZES[work][0], options.batch or SIZES[work][1]


def batch_of(work: str, steps: int, batch: int):  # type: ignore[no-untyped-def]
    """Return x [T, B, ...] and labels [B], those that chunk_speed.py uses."""
    from inputs import digits, frames, labels_for, utterances

    make = {"a": digits, "b": frames, "c": utterances}[work]
    return make(steps, batch), labels_for(batch, SIZES_OF_LAYERS[work][-1][0])


def weights_of(work: str):  # type: ignore[no-untyped-def]
    """Draw weights with which the hidden layers fire, the diagonal of recurrent ones zero."""
    import torch

    torch.manual_seed(0)
    weights = []
    for shape in SIZES_OF_LAYERS[work]:
        fan_in = math.prod(shape[1:]) or 1
        hidden = len(weights) < len(SIZES_OF_LAYERS[work]) - 2
        width = WIDTHS[work] if hidden and (work != "c" or not weights) else 1
        drawn = (2 * torch.rand(shape) - 1) * width / math.sqrt(fan_in) * (len(shape) > 1)
        weights.append((drawn * 2**12).round() / 2**12)
    if work == "c":
        weights[1].fill_diagonal_(0)
    return weights


def hand_written(work: str, x, labels):  # type: ignore[no-untyped-def]
    """Return the gradients of the hand-written OTTT loop."""
    from hand_loops import HandConvolutional, HandRecurrent, HandWritten

    loop = {"a": HandWritten, "b": HandConvolutional, "c": HandRecurrent}[work](weights_of(work))
    loop.sequence(x, labels)
    return loop.gradients


def relative_errors(found: Sequence, right: Sequence) -> list[float]:  # type: ignore[type-arg]
    """Return the relative error of each parameter's gradient."""
    return [float((a - b).norm() / b.norm()) for a, b in zip(found, right, strict=True)]


def report(
    peer: str, work: str, steps: int, batch: int, options: argparse.Namespace, run: Callable[[], object], timed: int
) -> None:
    """Time `run`, a training step over `timed` timesteps, once unmeasured, and print its JSON line."""
    if options.rules and not any(part in peer for part in options.rules):
        return
    run()
    seconds = []
    for _ in range(options.rounds):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    line = {
        "peer": peer,
        "work": work,
        "steps": steps,
        "batch": batch,
        "threads": options.threads,
        "timed_steps": timed,
        "milliseconds_per_step": 1e3 * statistics.median(seconds) / timed,
        "seconds": seconds,
    }
    print(json.dumps(line), flush=True)
