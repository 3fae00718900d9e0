"""Speed of an OTTT training step of the MLP 2312-512-10, against a hand-written loop and SpikingJelly.

    python benchmarks/step_speed.py [--rounds 25] [--steps 20] [--batch 128] [--device cpu] [--threads N]

One training step is one sequence: T steps of forward, trace update, neuron backward and ET backward, then one Adam
update. The contenders run interleaved in one process; medians are printed. Before anything is timed, the gradients
of snnlearn and of both hand-written loops are asserted to be equal. The hand-written loop is what one writes down
first: the four phases in plain tensor expressions. The tuned one is the best that we can write for this one network
on a CPU: every buffer allocated once, every operation in place, products that accumulate, the loss differentiated by
hand; no checks, no counts, no other loss. SpikingJelly is optional (`pip install spikingjelly`); its containers do
not trace the first layer, so a second variant hands them a traced input.
"""

import argparse
import importlib.util
import statistics
from collections.abc import Callable

import torch
from common import interleaved, machine, ratio_of_medians, save, sparse_counts, table
from hand_loops import CLASSES, DECAY, HIDDEN, INPUTS, THRESHOLD, HandWritten, Tuned
from torch import Tensor, nn
from torch.nn import functional as F

from snnlearn import LIF, OTTT, ETBlock, ETLinear, OnlineLearner, Readout


def build_network() -> nn.Sequential:
    """Return the MLP with weights wide enough that the hidden layer fires."""
    net = nn.Sequential(
        ETBlock(ETLinear(INPUTS, HIDDEN), LIF(decay=DECAY, threshold=THRESHOLD)),
        Readout(nn.Linear(HIDDEN, CLASSES)),
    )
    with torch.no_grad():
        next(net.parameters()).mul_(4)
    return net


def jelly_step(weights: list[Tensor], trace_input: bool) -> tuple[Callable[[Tensor, Tensor], float], nn.Module]:
    """Return a training step with SpikingJelly's OTTT containers on the same weights, and its network."""
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    lif = neuron.OTTTLIFNode(
        tau=1 / (1 - DECAY),
        decay_input=False,
        v_threshold=THRESHOLD,
        v_reset=None,
        surrogate_function=surrogate.ATan(alpha=2.0),
    )
    net = layer.OTTTSequential(layer.Linear(INPUTS, HIDDEN), lif, layer.Linear(HIDDEN, CLASSES))
    net = net.to(weights[0].device)
    with torch.no_grad():
        for parameter, weight in zip(net.parameters(), weights, strict=True):
            parameter.copy_(weight)
    optimizer = torch.optim.Adam(net.parameters())

    def learn(x: Tensor, labels: Tensor) -> float:
        functional.reset_net(net)
        optimizer.zero_grad()
        trace, loss, total = torch.zeros_like(x[0]), x.new_zeros(()), x.new_zeros(len(labels), CLASSES)
        for x_t in x:
            if trace_input:
                trace = lif.track_trace(x_t, trace, lif.tau)
            output = net([x_t, trace] if trace_input else x_t)
            step_loss = F.cross_entropy(output, labels) / len(x)
            step_loss.backward()
            loss += step_loss.detach()
            total += output.detach()
        optimizer.step()
        return float(loss)

    return learn, net


def gemm_floor(x: Tensor, weight: Tensor, readout: Tensor) -> Callable[[], None]:
    """Return a run of one sequence's matrix products and nothing else."""
    batch = x.shape[1]
    y, signal = weight.new_zeros(2, batch, HIDDEN)
    output = weight.new_zeros(batch, CLASSES)
    gradient, readout_gradient = torch.zeros_like(weight), torch.zeros_like(readout)

    def run() -> None:
        for x_t in x:
            torch.mm(x_t, weight.T, out=y)
            torch.mm(signal, readout.T, out=output)
            torch.mm(output.T, signal, out=readout_gradient)
            torch.mm(output, readout, out=signal)
            torch.mm(signal.T, x_t, out=gradient)

    return run


def relative_error(found: list[Tensor], right: list[Tensor]) -> float:
    """Return the largest relative error over the parameters."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, right, strict=True))


def check_equal(x: Tensor, labels: Tensor) -> dict[str, float]:
    """Assert that snnlearn and the hand-written loop have the same gradients; return each one's relative error."""
    net = build_network().to(x.device)
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.SGD(net.parameters(), lr=1.0))
    result = learner.learn(x, labels)
    ours = [before - after.detach() for before, after in zip(weights, net.parameters(), strict=True)]
    plain, tuned = HandWritten(weights), Tuned(weights, x.shape[1])
    loss, tuned_loss = plain.sequence(x, labels), tuned.sequence(x, labels)
    rate = float(tuned.spikes.mean())
    assert 0.02 < rate < 0.8, f"the hidden layer fires at {rate:.3f}: the comparison would say nothing"
    errors = {
        "snnlearn": relative_error(ours, plain.gradients),
        "tuned loop": relative_error(tuned.gradients, plain.gradients),
    }
    assert max(errors.values()) < 1e-3, f"snnlearn and the hand-written loops differ: {errors}"
    assert abs(result.loss - loss) < 1e-4 * loss, (result.loss, loss)
    assert abs(tuned_loss - loss) < 1e-4 * loss, (tuned_loss, loss)
    if importlib.util.find_spec("spikingjelly"):
        for name, trace_input in (("SpikingJelly", False), ("SpikingJelly, input traced", True)):
            learn, jelly = jelly_step(weights, trace_input)
            learn(x, labels)
            gradients = [parameter.grad for parameter in jelly.parameters() if parameter.grad is not None]
            errors[name] = relative_error(gradients, plain.gradients)
    return errors


def contenders(x: Tensor, labels: Tensor) -> dict[str, Callable[[], object]]:
    """Return everything that is timed, each on its own copy of the same network."""
    net = build_network().to(x.device)
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    learner = OnlineLearner(net, OTTT(), F.cross_entropy, torch.optim.Adam(net.parameters()))
    plain, tuned = HandWritten(weights), Tuned(weights, x.shape[1])
    runs: dict[str, Callable[[], object]] = {
        "snnlearn": lambda: learner.learn(x, labels),
        "hand-written loop": lambda: plain.learn(x, labels),
        "tuned loop": lambda: tuned.learn(x, labels),
    }
    if importlib.util.find_spec("spikingjelly"):
        jelly, _ = jelly_step(weights, False)
        traced, _ = jelly_step(weights, True)
        runs["SpikingJelly"] = lambda: jelly(x, labels)
        runs["SpikingJelly, input traced"] = lambda: traced(x, labels)
    else:
        print("SpikingJelly is absent (pip install spikingjelly): its rows are left out.\n")
    runs["matrix products alone"] = gemm_floor(x, weights[0], weights[2])
    return runs


def floor(batch: int) -> tuple[float, float]:
    """Return (FLOPs, bytes) that one timestep cannot do without, in float32.

    FLOPs: two products of the first layer, three of the readout. Bytes: input once, both weights once, both weight
    gradients and the trace read and written, hidden state read and written.
    """
    first, second = INPUTS * HIDDEN, HIDDEN * CLASSES
    flops = 2 * batch * (2 * first + 3 * second)
    moved = batch * INPUTS + (first + second) + 2 * (first + second) + 2 * batch * INPUTS + 2 * batch * HIDDEN
    return flops, 4 * moved


def main() -> None:
    """Check, measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="T")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = sparse_counts(options.steps, options.batch, options.device)
    labels = torch.randint(0, CLASSES, (options.batch,), device=options.device)
    print(f"MLP {INPUTS}-{HIDDEN}-{CLASSES}, OTTT, T = {options.steps}, B = {options.batch}, Adam once per sequence")
    print(f"input: {float((x > 0).float().mean()):.1%} of the counts are not zero;  {machine(options.device)}\n")
    errors = check_equal(x, labels)
    seconds = interleaved(contenders(x, labels), options.rounds, options.device)
    flops, moved = floor(options.batch)
    milliseconds = {name: 1e3 * statistics.median(times) / options.steps for name, times in seconds.items()}
    header = ["contender", "ms/timestep", "x hand-written", "x tuned", "x products", "GFLOP/s", "gradient error"]
    rows = [
        [
            name,
            f"{value:.2f}",
            f"{ratio_of_medians(seconds[name], seconds['hand-written loop']):.2f}",
            f"{ratio_of_medians(seconds[name], seconds['tuned loop']):.2f}",
            f"{ratio_of_medians(seconds[name], seconds['matrix products alone']):.2f}",
            f"{flops / value / 1e6:.0f}",
            f"{errors[name]:.0e}" if name in errors else "",
        ]
        for name, value in milliseconds.items()
    ]
    print(table(header, rows))
    print(f"\nfloor of a timestep: {flops / 1e6:.0f} MFLOP, {moved / 1e6:.1f} MB. Medians of {options.rounds} rounds.")
    print("gradient error: relative to the hand-written loop, largest over the parameters, before the first update.")
    save(
        "step_speed",
        options.device,
        {
            "steps": options.steps,
            "batch": options.batch,
            "milliseconds_per_timestep": milliseconds,
            "seconds": seconds,
            "flops_per_timestep": flops,
            "bytes_per_timestep": moved,
            "gradient_error": errors,
        },
    )


if __name__ == "__main__":
    main()
