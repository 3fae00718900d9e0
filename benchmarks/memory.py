"""Peak memory of a training step as the sequence grows: flat for OTTT, growing for BPTT.

    python benchmarks/memory.py [--device cpu] [--longest 10000]

The input is streamed from a generator, so no sequence lies in memory. On the CPU every tensor that torch allocates is
followed: a dispatch mode notes each storage when an operation returns it and its end when it is freed, and the peak
of the bytes alive is reported (workspaces inside one operation, such as packed matrices, are not seen). On a GPU it is
torch's own peak. Weights and optimizer state lie outside the figure, which is what a training step adds.
"""

import argparse
import resource
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from common import machine, save, table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from snnlearn import BPTT, LIF, OTTT, ETBlock, ETLinear, LearningRule, OnlineLearner, Readout

INPUTS, HIDDEN, CLASSES, BATCH = 578, 128, 10, 8
STEPS = {"ottt": (10, 100, 1_000, 10_000), "bptt": (10, 100, 1_000)}


class AllocationPeak(TorchDispatchMode):
    """Follow the bytes of all storages born inside the context, and the most that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.living: dict[int, tuple[weakref.ref[object], int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        given = {id(tensor.untyped_storage()) for tensor in tensors_in(args)}
        given |= {id(tensor.untyped_storage()) for tensor in tensors_in((kwargs or {}).values())}
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in((result,)):
            storage = tensor.untyped_storage()
            if id(storage) not in given and id(storage) not in self.living:
                self._born(storage)
        return result

    def _born(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()

        def freed(_: object) -> None:
            del self.living[key]
            self.alive -= size

        self.living[key] = weakref.ref(storage, freed), size
        self.alive += size
        self.peak = max(self.peak, self.alive)


def tensors_in(values: Iterable[object]) -> Iterator[Tensor]:
    """Yield the tensors among `values` and in the lists and tuples among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


@contextmanager
def peak_bytes(device: torch.device) -> Iterator[list[int]]:
    """Put the peak of the bytes allocated inside the context into the list that is yielded."""
    figure: list[int] = []
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield figure
        figure.append(torch.cuda.max_memory_allocated(device) - before)
    else:
        with AllocationPeak() as mode:
            yield figure
        figure.append(mode.peak)


def stream(steps: int, device: torch.device) -> Iterator[Tensor]:
    """Yield the counts of one step after the other."""
    generator = torch.Generator(device).manual_seed(0)
    for _ in range(steps):
        yield (torch.rand(BATCH, INPUTS, device=device, generator=generator) < 0.05).float()


def peak_of_a_step(rule: LearningRule, steps: int, device: torch.device, chunk: int = 1) -> int:
    """Return the peak bytes of the second training step of `steps` timesteps, `chunk` at once, the optimizer warm."""
    torch.manual_seed(0)
    net = nn.Sequential(
        ETBlock(ETLinear(INPUTS, HIDDEN), LIF(decay=0.5)),
        Readout(nn.Linear(HIDDEN, CLASSES)),
    ).to(device)
    labels = torch.zeros(BATCH, dtype=torch.long, device=device)
    learner = OnlineLearner(net, rule, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.01), chunk=chunk)
    learner.learn(stream(3, device), labels)
    learner.reset()
    with peak_bytes(device) as figure:
        learner.learn(stream(steps, device), labels)
        learner.reset()
    return figure[0]


def floor_bytes() -> int:
    """Return what OTTT cannot do without, in float32: a gradient per weight, its traces, the neurons' states."""
    weights = INPUTS * HIDDEN + HIDDEN * CLASSES + HIDDEN + CLASSES
    return 4 * (weights + BATCH * INPUTS + BATCH * HIDDEN)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--longest", type=int, default=10_000, help="leave out sequences longer than this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"MLP {INPUTS}-{HIDDEN}-{CLASSES}, B = {BATCH}, input streamed; {machine(options.device)}\n")
    peaks: dict[str, dict[int, int]] = {}
    rows = []
    for name, rule in (("ottt", OTTT()), ("bptt", BPTT())):
        peaks[name] = {}
        for steps in (steps for steps in STEPS[name] if steps <= options.longest):
            peaks[name][steps] = peak_of_a_step(rule, steps, options.device)
            growth = peaks[name][steps] / peaks[name][STEPS[name][0]]
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            rows.append(
                [name.upper(), str(steps), f"{peaks[name][steps] / 1e6:.3f}", f"{growth:.3f}", f"{resident:.0f}"]
            )
    print(table(["rule", "T", "peak MB", "x that of T = 10", "process peak MiB so far"], rows))
    print(f"\nfloor of OTTT: {floor_bytes() / 1e6:.3f} MB (gradients, traces, states), whatever T.")
    flops = 2 * BATCH * (2 * INPUTS * HIDDEN + 3 * HIDDEN * CLASSES)
    print(f"floor of a timestep: {flops / 1e6:.1f} MFLOP.")
    save("memory", options.device, {"peak_bytes": peaks, "floor_bytes": floor_bytes(), "flops_per_step": flops})


if __name__ == "__main__":
    main()
