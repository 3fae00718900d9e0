"""Every check and every timing that needs a GPU, in one run of under 8 minutes, and one table.

    python benchmarks/gpu.py [--device cuda] [--work a b c] [--rules ottt drtrl eprop] [--seconds 440] [--small]

Checks: the device against the CPU; a chunk of 16 against single steps; kernels against their references; a graph
against eager learning; bfloat16 against float32, with float32 memory; sparse events against dense frames. Timings, in
ms a step: the works (a), (b), (c) of `chunk_speed.py`, for each rule and chunk, eager and as a graph, in float32 and
with products in bfloat16, with kernels and without, beside the bare products of the same work, which are the floor.

The time is kept: what no longer fits into `--seconds` is left out and named. A check that fails makes the exit status
1. Without a CUDA device nothing runs and the status is 2; `--device cpu --small` runs the same path in seconds, with
graphs replayed one operation at a time, which says that it works and nothing about speed.
"""

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any

import torch
from chunk_speed import CHECKED_ROWS, RULES, Keeping, is_refused
from common import machine, save, synchronize, table
from step_speed import relative_error
from torch import Tensor
from torch.nn import functional as F
from works import WORKS, Work

from snnlearn import OnlineLearner
from snnlearn.data import SparseSequence
from snnlearn.engine.capture import CaptureError, CudaCapture, TapeCapture
from snnlearn.engine.graphed import GraphedLearner
from snnlearn.nn import stateful_modules

SIZES = {"a": (96, 128), "b": (32, 32), "c": (96, 64)}
SMALL = (6, 4)
CHUNKS = (1, 16, 32)
TEXTBOOK_STEPS = 16
MOST_SECONDS = 440
SECONDS_FOR_ONE = 4.0
ROUNDS = 7
EXACT, LOW = 1e-3, 0.15
"""Largest relative error of gradients: other orders of summation, and other spikes where bfloat16 rounds an input."""


class Budget:
    """The seconds that are left, and what they were too few for."""

    def __init__(self, seconds: float) -> None:
        self.end, self.left_out = time.monotonic() + seconds, list[str]()

    def allows(self, name: str, seconds: float) -> bool:
        """Whether something that takes so long fits in; note its name where not."""
        fits = time.monotonic() + seconds < self.end
        if not fits:
            self.left_out.append(name)
        return fits


def has_kernels() -> bool:
    """Whether this tree has kernels and their dispatcher."""
    return importlib.util.find_spec("snnlearn.kernels.dispatch") is not None


def on_path(path: str) -> AbstractContextManager[Any]:
    """Return a context in which functions with a twin take that path; none where there are no kernels."""
    return importlib.import_module("snnlearn.kernels.dispatch").use(path) if has_kernels() else nullcontext()


def in_precision(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return autocast to bfloat16, or nothing for float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)


def learner_on(work: Work, rule: str, chunk: int, device: torch.device, optimizer: Any = None) -> OnlineLearner:
    """Return a learner on the device, its weights rounded to bfloat16 so that both precisions have the same."""
    torch.manual_seed(0)
    net = work.build()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.bfloat16())
    net.to(device)
    built = Keeping(net.parameters(), lr=0.0) if optimizer is None else optimizer(net.parameters())
    return OnlineLearner(net, RULES[rule](), F.cross_entropy, built, chunk=chunk)


def adam(device: torch.device) -> Callable[[Any], torch.optim.Optimizer]:
    """Return Adam as a graph can take it."""
    return partial(torch.optim.Adam, lr=1e-3, fused=True, capturable=device.type == "cuda")


def capture_on(device: torch.device) -> CudaCapture | TapeCapture:
    """Return how graphs are captured on the device."""
    return CudaCapture() if device.type == "cuda" else TapeCapture()


def gradients(learner: OnlineLearner, x: Any, y: Tensor) -> list[Tensor]:
    """Return the gradients of one sequence, on the CPU; raise where nothing fires."""
    rates = learner.learn(x, y).firing_rates
    assert any(0.01 < rate < 0.9 for rate in rates.values()), f"firing rates {rates}: the comparison would say nothing"
    assert isinstance(learner.optimizer, Keeping)
    return [gradient.cpu() for gradient in learner.optimizer.kept]


def wrong_dtypes(learner: OnlineLearner) -> list[str]:
    """Return what the network remembers in less than float32."""
    found = []
    for module in stateful_modules(learner.net):
        for name, value in module.watched().items():
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Tensor) and part.dtype in (torch.bfloat16, torch.float16):
                    found.append(f"{type(module).__name__}.{name}")
    return found


def checks_of(
    letter: str, rule: str, device: torch.device, steps: int
) -> Iterator[tuple[str, Callable[[], float], float]]:
    """Yield name, measurement and bound of every check of a rule on a work."""
    work = WORKS[letter]
    x, y = work.inputs(steps, CHECKED_ROWS)
    here, there, chunk = (x.to(device), y.to(device)), (x, y), min(16, steps // 2)
    alone = is_refused(work, rule, chunk, steps) and is_refused(work, rule, 1, steps)
    if alone:
        return
    chunk = 1 if is_refused(work, rule, chunk, steps) else chunk
    cpu = torch.device("cpu")

    def against(other: Callable[[], list[Tensor]], mine: Callable[[], list[Tensor]]) -> Callable[[], float]:
        return lambda: relative_error(mine(), other())

    def run(where: torch.device, length: int, path: str = "reference") -> list[Tensor]:
        with on_path(path):
            return gradients(learner_on(work, rule, length, where), *(there if where == cpu else here))

    def low() -> list[Tensor]:
        learner = learner_on(work, rule, chunk, device)
        with in_precision(device, torch.bfloat16), on_path("reference"):
            found = gradients(learner, *here)
        assert not wrong_dtypes(learner), f"not float32: {wrong_dtypes(learner)}"
        return found

    eager = partial(run, device, chunk)
    yield "chunk against single steps", against(partial(run, device, 1), eager), EXACT
    if device.type == "cuda":
        yield "device against CPU", against(partial(run, cpu, chunk), eager), EXACT
    if has_kernels() and device.type == "cuda":
        yield "kernels against references", against(eager, partial(run, device, chunk, "triton")), EXACT
    yield "bfloat16 against float32", against(eager, low), LOW
    if steps % chunk == 0:
        yield "graph against eager", partial(graph_error, work, rule, chunk, device, here), EXACT
    if letter == "a" and rule == "ottt":
        sparse = lambda: gradients(learner_on(work, rule, chunk, device), sparse_of(x).to(device), here[1])  # noqa: E731
        yield "sparse against dense events", against(eager, sparse), EXACT


def graph_error(work: Work, rule: str, chunk: int, device: torch.device, data: tuple[Tensor, Tensor]) -> float:
    """Return how far the weights moved otherwise by a graph than eagerly, over three sequences."""
    moved = []
    for replays in (False, True):
        learner = learner_on(work, rule, chunk, device, adam(device))
        before = [p.detach().clone() for p in learner.net.parameters()]
        runner: Any = GraphedLearner(learner, *data, capture_on(device)) if replays else learner
        for _ in range(3):
            runner.learn(*data)
        moved.append([p.detach().cpu() - b.cpu() for p, b in zip(learner.net.parameters(), before, strict=True)])
    return relative_error(moved[1], moved[0])


def sparse_of(x: Tensor) -> SparseSequence:
    """Return frames x [T, B, I] as sparse events."""
    _, batch, inputs = x.shape
    rows = x.flatten(0, 1)
    place = rows.nonzero()
    ends = torch.cat([torch.zeros(1, dtype=torch.long), (rows != 0).sum(1).cumsum(0)])
    return SparseSequence(ends, place[:, 1].int(), rows[rows != 0], batch, inputs)


def run_checks(options: argparse.Namespace, device: torch.device, budget: Budget) -> list[list[str]]:
    """Run every check that fits in and return its rows."""
    rows = []
    for letter in options.work:
        for rule in options.rules:
            for name, measure, bound in checks_of(letter, rule, device, SMALL[0] if options.small else 32):
                full = f"({letter}) {rule}: {name}"
                if not budget.allows(full, SECONDS_FOR_ONE):
                    continue
                error = measure()
                rows.append([full, f"{error:.1e}", f"{bound:.1e}", "ok" if error < bound else "FAILED"])
    return rows


def milliseconds(run: Callable[[], object], steps: int, device: torch.device, rounds: int) -> float:
    """Return the median ms a step, of as many rounds as take a few seconds; the first run does not count."""
    run()
    seconds: list[float] = []
    end = time.monotonic() + SECONDS_FOR_ONE
    while len(seconds) < rounds and (not seconds or time.monotonic() < end):
        synchronize(device)
        begin = time.perf_counter()
        run()
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(seconds) / steps


def variants() -> list[tuple[str, bool, torch.dtype, str]]:
    """Return name, graph, precision and path of the kernels of everything that is timed; the most wanted first."""
    return [
        ("eager", False, torch.float32, "auto"),
        ("graph", True, torch.float32, "auto"),
        ("graph bfloat16", True, torch.bfloat16, "auto"),
        ("eager bfloat16", False, torch.bfloat16, "auto"),
        *([("eager, no kernels", False, torch.float32, "reference")] if has_kernels() else []),
    ]


def run_timings(options: argparse.Namespace, device: torch.device, budget: Budget) -> list[list[str]]:
    """Time everything that fits in and return its rows."""
    rows = []
    rounds = 1 if options.small else ROUNDS
    for variant in variants():
        for letter in options.work:
            steps, batch = SMALL if options.small else SIZES[letter]
            x, y = (part.to(device) for part in WORKS[letter].inputs(steps, batch))
            for chunk in sorted({*(k for k in CHUNKS if k < steps), steps}):
                floor = floor_of(letter, chunk, x, variant[2], device, rounds, budget)
                for rule in options.rules:
                    rows += time_one(letter, rule, chunk, variant, (x, y), floor, device, rounds, budget)
    return rows


def floor_of(
    letter: str, chunk: int, x: Tensor, dtype: torch.dtype, device: torch.device, rounds: int, budget: Budget
) -> float | None:
    """Return the ms a step of the bare products in that precision."""
    if not budget.allows(f"({letter}) products K={chunk}", 1.0):
        return None
    products = WORKS[letter].products(x.to(dtype), WORKS[letter].build().to(device, dtype), chunk)
    return milliseconds(products, len(x), device, rounds)


def time_one(
    letter: str,
    rule: str,
    chunk: int,
    variant: tuple[str, bool, torch.dtype, str],
    data: tuple[Tensor, Tensor],
    floor: float | None,
    device: torch.device,
    rounds: int,
    budget: Budget,
) -> list[list[str]]:
    """Return the row of one contender, none where it is refused or no longer fits in."""
    (name, replays, dtype, path), work, (x, y) = variant, WORKS[letter], data
    full = f"({letter}) {rule} K={chunk} {name}"
    if is_refused(work, rule, chunk, len(x)):
        return []
    if chunk == 1 and rule != "ottt":
        x = x[:TEXTBOOK_STEPS]
    if replays and len(x) % chunk:
        return [[full, "left out", "", f"T = {len(x)} is no multiple of the chunk"]]
    if not budget.allows(full, 2 * SECONDS_FOR_ONE):
        return []
    with on_path(path), in_precision(device, dtype):
        learner: Any = learner_on(work, rule, chunk, device, adam(device))
        try:
            learner = GraphedLearner(learner, x, y, capture_on(device)) if replays else learner
        except CaptureError as refusal:
            return [[full, "refused", "", str(refusal).replace("\n", " ")[:60]]]
        each = milliseconds(lambda: learner.learn(x, y), len(x), device, rounds)
    return [[full, f"{each:.3f}", "" if floor is None else f"{each / floor:.2f}", "x products"]]


def main() -> None:
    """Check, time, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--work", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--rules", nargs="+", choices=tuple(RULES), default=list(RULES))
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="what no longer fits in is left out")
    parser.add_argument("--small", action="store_true", help=f"T and B of {SMALL}, one round")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing was checked and nothing timed; --device cpu --small runs the same path here")
        sys.exit(2)
    device, budget = torch.device(options.device), Budget(options.seconds)
    print(machine(device), f"float32 products: {torch.get_float32_matmul_precision()}")
    print("kernels: " + ("as dispatch says" if has_kernels() else "none in this tree"))
    checks = run_checks(options, device, budget)
    timings = run_timings(options, device, budget)
    header = [["check", "relative error", "bound", ""], ["ms a step", "median", "ratio", ""]]
    print(table(header[0], [*checks, header[1], *timings]))
    for name in budget.left_out:
        print(f"left out, no time: {name}")
    result = {"checks": checks, "timings": timings, "left_out": budget.left_out, "seconds": options.seconds}
    save(f"gpu-{datetime.now():%Y-%m-%d-%H%M%S}", device, result)
    failed = [row[0] for row in checks if row[-1] != "ok"]
    if failed:
        print(f"failed: {', '.join(failed)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
