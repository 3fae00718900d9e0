"""The first layer on event data: sparse products against the dense matrix products of the same work.

    python benchmarks/sparse_events.py [--root data/nmnist] [--batch 128] [--steps 300] [--chunk 16] [--learn] [--sweep]

A batch of real N-MNIST recordings in bins of 1 ms, or where `--root` has none, counts drawn at their density. For
2312 -> 512 in float32 it times the value X W^T and the weight gradient D^T X over the whole sequence, chunk by chunk:
dense, writing to memory that is there already (the floor), and sparse, the building of the index from raw events and
the turning of the weights and of their gradient included. `--learn` sets a whole `OnlineLearner.learn` of
2312-512-10 on events beside the same on frames, which are made beforehand. `--sweep` goes over densities and rows, the
dense side made from the events first, as a block does it: where the two cross, the block stops to take the sparse ones
(`snnlearn.functional.sparse_map.DENSE_ABOVE`). OMP_NUM_THREADS sets the threads.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import interleaved, machine, save, table
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import LI, LIF, OTTT, ETBlock, ETLinear, OnlineLearner
from snnlearn.data import NMNIST, Binning, DataError, EventSample, SparseSequence, collate_sparse
from snnlearn.functional.sparse_map import add_weight_gradient_, sparse_value

SENSOR, INPUTS, UNITS, CLASSES = (2, 34, 34), 2312, 512, 10
DENSITIES = (0.005, 0.01, 0.02, 0.05, 0.1)
ROWS = (128, 512, 2048)
CPU = torch.device("cpu")


def recordings(root: Path, batch: int, steps: int) -> tuple[list[EventSample], str]:
    """Return a batch of recordings and what they are."""
    try:
        data = NMNIST(root, "train")
        whole = [data.events(int(i)) for i in np.linspace(0, len(data) - 1, batch).astype(int)]
        return [within(sample, steps * 1000) for sample in whole], "real N-MNIST"
    except DataError:
        rng = np.random.default_rng(0)
        count, end = round(0.006 * steps * INPUTS), steps * 1000
        return [
            EventSample(
                rng.integers(0, end, count).astype(np.int32), rng.integers(0, INPUTS, count).astype(np.int32), end, 0
            )
            for _ in range(batch)
        ], "drawn at a density of 0.6 %"


def within(sample: EventSample, end_us: int) -> EventSample:
    """Return what a recording holds before `end_us`: later events would all fall into the last bin."""
    kept = sample.time_us < end_us
    return EventSample(sample.time_us[kept], sample.channel[kept], end_us, sample.label)


def index(samples: list[EventSample], steps: int) -> SparseSequence:
    """Build the sparse batch from raw events."""
    binning = Binning(by="duration", bin_us=1000, steps=steps, sparse=True)
    return collate_sparse([(binning.binned(sample, SENSOR), sample.label) for sample in samples])[0]


def dense_products(x: Tensor, weight: Tensor, d: Tensor, times: int) -> Callable[[], object]:
    """Return the two dense products of a chunk, done `times` times, as a function."""
    y, gradient = torch.empty(len(x), UNITS), torch.zeros(UNITS, INPUTS)

    def run() -> None:
        for _ in range(times):
            torch.mm(x, weight.T, out=y)
            gradient.addmm_(d.T, x)

    return run


def sparse_products(chunks: Callable[[], list[Tensor]], weight: Tensor, d: Tensor) -> Callable[[], object]:
    """Return the two sparse products of all chunks, and the gradient in the weights' own order, as a function."""

    def run() -> Tensor:
        total = torch.zeros(INPUTS, UNITS)
        for x in chunks():
            sparse_value(x, weight)
            add_weight_gradient_(total, d[: len(x)], x)
        return total.T.contiguous()

    return run


def cut(events: SparseSequence, chunk: int) -> list[Tensor]:
    """Return the chunks of a sequence."""
    return [events.folded(begin, min(begin + chunk, len(events))) for begin in range(0, len(events), chunk)]


def learning(events: SparseSequence, chunk: int) -> dict[str, Callable[[], object]]:
    """Return `learn` on frames and on events."""
    labels = torch.arange(events.batch) % CLASSES

    def learner() -> OnlineLearner:
        torch.manual_seed(0)
        net = nn.Sequential(ETBlock(ETLinear(INPUTS, UNITS), LIF()), ETBlock(ETLinear(UNITS, CLASSES), LI()))
        return OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=1e-3), chunk=chunk)

    frames, on_frames, on_events = events.to_dense(), learner(), learner()
    return {
        "learn, frames": lambda: on_frames.learn(frames, labels),
        "learn, events": lambda: on_events.learn(events, labels),
    }


def sweep(rows: int, rounds: int) -> list[list[str]]:
    """Return a line per density of random rows: ms of both products dense and sparse, and the ratio."""
    lines = []
    weight, d = torch.randn(UNITS, INPUTS), torch.randn(rows, UNITS)
    for share in DENSITIES:
        dense = (torch.rand(rows, INPUTS) < share).float()
        place = dense.nonzero()
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), (dense != 0).sum(1).cumsum(0)]).int()
        x = SparseSequence(ends, place[:, 1].int(), torch.ones(len(place)), 1, INPUTS).folded(0, rows)
        seconds = interleaved(
            {
                "dense": lambda x=x: dense_products(x.to_dense(), weight, d, 1)(),  # type: ignore[misc]
                "sparse": sparse_products(lambda x=x: [x], weight, d),  # type: ignore[misc]
            },
            rounds,
            CPU,
        )
        median = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}
        ratio = median["sparse"] / median["dense"]
        lines.append([str(rows), f"{share:.1%}", f"{median['dense']:.1f}", f"{median['sparse']:.1f}", f"{ratio:.2f}"])
    return lines


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data/nmnist"), help="folder of N-MNIST")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300, help="bins of 1 ms")
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--learn", action="store_true", help="time a whole OnlineLearner.learn too")
    parser.add_argument("--sweep", action="store_true", help="time random rows of several densities")
    options = parser.parse_args()
    torch.manual_seed(0)
    samples, what = recordings(options.root, options.batch, options.steps)
    begin = time.perf_counter()
    events = index(samples, options.steps)
    first = 1e3 * (time.perf_counter() - begin)
    weight, d = torch.randn(UNITS, INPUTS), torch.randn(options.chunk * options.batch, UNITS)
    frames = events.folded(0, min(options.chunk, len(events))).to_dense()
    pieces = len(events) / options.chunk
    contenders = {
        "dense products (floor)": dense_products(frames, weight, d[: len(frames)], round(pieces)),
        "sparse products": sparse_products(lambda: cut(events, options.chunk), weight, d),
        "index from raw events": lambda: index(samples, options.steps),
        "sparse products + index": sparse_products(
            lambda: cut(index(samples, options.steps), options.chunk), weight, d
        ),
        **(learning(events, options.chunk) if options.learn else {}),
    }
    print(f"{what}: {events}, chunk {options.chunk}\n{machine(CPU)}; the first index took {first:.0f} ms\n")
    seconds = interleaved(contenders, options.rounds, CPU)
    median = {name: 1e3 * statistics.median(times) / len(events) for name, times in seconds.items()}
    floor = median["dense products (floor)"]
    rows = [[name, f"{ms:.3f}", f"{ms / floor:.3f}", f"{floor / ms:.1f}"] for name, ms in median.items()]
    print(table(["", "ms a step", "of the floor", "times faster"], rows))
    lines = [line for rows in ROWS for line in sweep(rows, options.rounds)] if options.sweep else []
    if lines:
        print("\nrandom rows")
        print(table(["rows", "density", "dense ms", "sparse ms", "ratio"], lines))
    save("sparse_events", CPU, {"events": repr(events), "chunk": options.chunk, "ms_per_step": median, "sweep": lines})


if __name__ == "__main__":
    main()
