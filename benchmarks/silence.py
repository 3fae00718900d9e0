"""Cost of a long silence: a step without input takes no longer than a busy one.

    python benchmarks/silence.py [--steps 1000] [--device cpu]

With decay 0.5 an impulse is a subnormal number in float32 after 126 silent steps and zero after 150, and arithmetic
on subnormal numbers is many times slower on most CPUs. snnlearn flushes states and traces below 1e-30, so none
arises. The network runs a busy stretch, then `--steps` silent steps, learning at every step; the slowest window of
ten silent steps is set beside the busy median. On the CPU one thread runs and its own time is taken, which other
programs disturb little. The hand-written loop of step_speed.py, which flushes nothing, is the control.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from common import machine, save, sparse_counts, synchronize, table
from hand_loops import CLASSES, INPUTS, Tuned
from step_speed import build_network
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import OTTT, attach
from snnlearn.nn import stateful_modules

BUSY, WINDOW, BATCH = 100, 10, 32


def timed(step: Callable[[Tensor], object], x: Tensor, silent_steps: int) -> tuple[list[float], list[float]]:
    """Run the steps of x, then silent ones; return the seconds of each busy and of each silent step."""
    clock = time.perf_counter if x.is_cuda else time.process_time
    seconds = []
    silence = torch.zeros_like(x[0])
    for x_t in [*x, *[silence] * silent_steps]:
        begin = clock()
        step(x_t)
        synchronize(x.device)
        seconds.append(clock() - begin)
    return seconds[10 : len(x)], seconds[len(x) :]


def online_step(labels: Tensor, net: nn.Module) -> Callable[[Tensor], object]:
    """Return snnlearn's four phases of one step as a function of x_t."""
    attach(net, OTTT())
    net.train()
    return lambda x_t: F.cross_entropy(net(x_t), labels).backward()


def plain_step(labels: Tensor, weights: list[Tensor]) -> Callable[[Tensor], object]:
    """Return one step of the hand-written loop, its state kept from step to step."""
    plain = Tuned(weights, BATCH)
    plain.reset()
    target = F.one_hot(labels, CLASSES).to(weights[0].dtype)
    return lambda x_t: plain.step(x_t, target, 1 / BATCH)


def subnormal_penalty(device: torch.device) -> float:
    """Return how many times longer a product of a layer's trace takes when the trace is subnormal."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    signal = torch.randn(BATCH, 512, device=device)
    medians = []
    for scale in (1.0, 1e-40):
        trace = torch.rand(BATCH, INPUTS, device=device) * scale
        seconds = []
        for _ in range(15):
            begin = clock()
            signal.T @ trace
            synchronize(device)
            seconds.append(clock() - begin)
        medians.append(statistics.median(seconds))
    return medians[1] / medians[0]


def state_tensors(net: nn.Module) -> list[Tensor]:
    """Return every tensor that the network carries from step to step."""
    values = [value for module in stateful_modules(net) for value in module.stash().values()]
    flat = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return [part for part in flat if isinstance(part, Tensor)]


def subnormal_share(tensor: Tensor) -> float:
    """Return the share of elements that are subnormal."""
    return float(((tensor != 0) & (tensor.abs() < torch.finfo(tensor.dtype).tiny)).double().mean())


def figures(busy: list[float], silent: list[float]) -> dict[str, float]:
    """Return medians in seconds, the slowest window of silent steps and where it began, and the two ratios."""
    windows = [statistics.median(silent[i : i + WINDOW]) for i in range(0, len(silent), WINDOW)]
    medians = {"busy": statistics.median(busy), "silent": statistics.median(silent), "slowest": max(windows)}
    return {
        **medians,
        "ratio": medians["silent"] / medians["busy"],
        "slowest_ratio": medians["slowest"] / medians["busy"],
        "slowest_at": windows.index(max(windows)) * WINDOW,
    }


def row(name: str, values: dict[str, float]) -> list[str]:
    """Return a line of the table."""
    times = [f"{1e3 * values[key]:.2f}" for key in ("busy", "silent", "slowest")]
    return [name, *times, f"{values['ratio']:.2f}", f"{values['slowest_ratio']:.2f}", f"{values['slowest_at']:.0f}"]


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="silent steps")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = sparse_counts(BUSY, BATCH, options.device) * 5
    labels = torch.randint(0, CLASSES, (BATCH,), device=options.device)
    net = build_network().to(options.device)
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    print(f"MLP of step_speed.py, B = {BATCH}: {BUSY} busy steps, then {options.steps} silent ones, decay 0.5")
    print(f"{machine(options.device)}\n")
    result = {
        "snnlearn": figures(*timed(online_step(labels, net), x, options.steps)),
        "hand-written, no flush": figures(*timed(plain_step(labels, weights), x, options.steps)),
    }
    header = ["", "busy ms", "silent ms", "slowest ten", "silent/busy", "slowest/busy", "at silent step"]
    print(table(header, [row(name, values) for name, values in result.items()]))
    kept = state_tensors(net)
    share = max(subnormal_share(tensor) for tensor in kept)
    print(f"\nsubnormal numbers left in the {len(kept)} states and traces of snnlearn: {share:.1%}")
    penalty = subnormal_penalty(options.device)
    print(
        f"on this processor a product with a subnormal trace takes {penalty:.1f} times as long as with a normal one",
        end="",
    )
    print("; the control cannot show a difference here." if penalty < 2 else ".")
    flops = 2 * BATCH * (2 * INPUTS * 512 + 3 * 512 * CLASSES)
    print(f"floor of a step: {flops / 1e6:.0f} MFLOP, busy or silent.")
    save(
        "silence",
        options.device,
        {"subnormal_share": share, "subnormal_penalty": penalty, "flops_per_step": flops, **result},
    )


if __name__ == "__main__":
    main()
