"""Speed of the chunkwise engine on four works, beside hand-written loops, bare products, and peers.

    python benchmarks/chunk_speed.py [--work a b c d] [--rules ottt drtrl eprop] [--chunks 1 8 16 32 T] [--steps T]
        [--rounds 7] [--batch B] [--threads N] [--textbook-steps 16] [--peers FILE ...] [--no-memory]

(a) MLP 2312-512-10, B 128; (b) conv 2x34x34 -> 32 -> 64 -> 10, B 32; (c) recurrent 700-256-20, B 64; (d) the MLP on
real N-MNIST recordings in bins of 1 ms, left out where there are none, whose "events" rows learn from the sparse
events and whose "sparse products" are the floor's with the input sparse. A run is a training step: one sequence and one
Adam update. Everything of a work runs interleaved in one process; medians are printed. "products" are the bare matrix
products of the same work with K steps at once, the floor of the row; "trace MB/step" the bytes of traces that a step
cannot help reading and writing, once per chunk and not at all when one chunk is the sequence.

Before a work is timed, a small batch of it is run in float32: gradients at every chunk are asserted to equal those of
chunk 1, and those of the hand-written loop. Rules per synapse at chunk 1 are timed on the first `--textbook-steps`
alone, since they would take minutes; per step it is the same work. `--peers` merges what the scripts in
benchmarks/peers wrote (see there); lines measured under other conditions are refused.
"""

import argparse
import statistics
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

import torch
from common import interleaved, machine, save, table
from figures import figures_of, peers_of
from hand_loops import Tuned
from inputs import SIZES, recordings_folder
from memory import peak_of_a_step
from step_speed import relative_error
from torch import Tensor
from torch.nn import functional as F
from works import WORKS, Work, events_of, sparse_products

from snnlearn import DRTRL, OTTT, EProp, LearningRule, OnlineLearner
from snnlearn.data import SparseSequence
from snnlearn.engine.chunked import covered
from snnlearn.engine.layout import lay_out_, may_choose_layout
from snnlearn.nn.clocked_trace import ClockedTrace
from snnlearn.rules.legality import RuleChoiceError

KAPPA = 0.875
RULES: dict[str, Callable[[], LearningRule]] = {"ottt": OTTT, "drtrl": DRTRL, "eprop": lambda: EProp(kappa=KAPPA)}
CPU = torch.device("cpu")
CHECKED_ROWS = 4
ROUNDING = 1e-4
MEMORY_CHUNK = 5
MEMORY_STEPS = (10, 1_000)


class Keeping(torch.optim.SGD):
    """Keep the gradients of the last update and change nothing."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.kept = [p.grad.clone() for group in self.param_groups for p in group["params"]]


def learner_for(
    work: Work, rule: str, chunk: int, optimizer: type[torch.optim.SGD | torch.optim.Adam], channels_last: bool = False
) -> OnlineLearner:
    """Return a learner on the work's network, the same weights every time."""
    torch.manual_seed(0)
    net = work.build()
    lay_out_(net, channels_last)
    return OnlineLearner(net, RULES[rule](), F.cross_entropy, optimizer(net.parameters(), lr=1e-3), chunk=chunk)


def gradients(
    work: Work, rule: str, chunk: int, x: Tensor | SparseSequence, labels: Tensor, channels_last: bool = False
) -> tuple[list[Tensor], dict[str, float]]:
    """Return the gradients of one sequence and the firing rates."""
    learner = learner_for(work, rule, chunk, Keeping, channels_last)
    rates = learner.learn(x, labels).firing_rates
    assert isinstance(learner.optimizer, Keeping)
    return learner.optimizer.kept, rates


def weights_of(work: Work) -> list[Tensor]:
    """Return a copy of the work's weights."""
    torch.manual_seed(0)
    return [parameter.detach().clone() for parameter in work.build().parameters()]


def check_equal(work: Work, rules: list[str], chunks: list[int], x: Tensor, labels: Tensor) -> dict[str, float]:
    """Assert that every chunk has the gradients of chunk 1, and OTTT those of the hand-written loop; return errors."""
    x, labels = x[:, :CHECKED_ROWS].contiguous(), labels[:CHECKED_ROWS]
    errors = {}
    for rule in rules:
        first = len(x) if is_refused(work, rule, 1, len(x)) else 1
        reference, rates = gradients(work, rule, first, x, labels)
        hidden = [rate for rate in rates.values() if rate < 1]
        assert any(0.02 < rate < 0.8 for rate in hidden), f"firing rates {rates}: the comparison would say nothing"
        assert all(float(gradient.norm()) > 0 for gradient in reference), "a gradient is zero"
        for chunk in chunks:
            if is_refused(work, rule, chunk, len(x)):
                continue
            if chunk != first:
                errors[f"{rule} K={chunk}"] = relative_error(gradients(work, rule, chunk, x, labels)[0], reference)
            if work.has_events and chunk > 1:
                found = gradients(work, rule, chunk, events_of(x), labels)[0]
                errors[f"{rule} events K={chunk}"] = relative_error(found, reference)
            if may_choose_layout(work.build()):
                found = gradients(work, rule, chunk, x, labels, channels_last=True)[0]
                errors[f"{rule} channels-last K={chunk}"] = relative_error(found, reference)
        if rule == "ottt":
            loop = work.hand(weights_of(work))
            loop.sequence(x, labels)
            errors["hand-written loop"] = relative_error(loop.gradients, reference)
    wrong = {name: error for name, error in errors.items() if not error < ROUNDING}
    assert not wrong, f"{work.title}: not the gradients of chunk 1, so nothing is timed: {wrong}"
    return errors


@cache
def is_refused(work: Work, rule: str, chunk: int, steps: int) -> str:
    """Return why the library refuses this rule and chunk on the work's network and T steps, "" when it does not."""
    try:
        covered(learner_for(work, rule, chunk, Keeping).net, [torch.empty(0)] * steps, chunk)
    except RuleChoiceError as refusal:
        return str(refusal)
    return ""


def contenders(
    work: Work, rules: list[str], chunks: list[int], x: Tensor, labels: Tensor, textbook_steps: int
) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
    """Return everything that is timed, and over how many steps each runs."""
    runs: dict[str, Callable[[], object]] = {}
    steps: dict[str, int] = {}

    def add(name: str, run: Callable[[], object], length: int = len(x)) -> None:
        runs[name], steps[name] = run, length

    events = events_of(x) if work.has_events else None

    def add_learner(name: str, learner: OnlineLearner, x: Tensor | SparseSequence) -> None:
        def run() -> None:
            learner.learn(x, labels)
            learner.reset()  # a per-synapse trace is large: it is not held while others run

        add(name, run, len(x))

    for rule in rules:
        refused = {chunk: reason for chunk in chunks if (reason := is_refused(work, rule, chunk, len(x)))}
        for reason in dict.fromkeys(refused.values()):
            named = ", ".join(str(chunk) for chunk in refused if refused[chunk] == reason)
            print(f"left out: {rule} K={named}: {reason}")
        for chunk in (chunk for chunk in chunks if chunk not in refused):
            short = x[:textbook_steps] if chunk == 1 and rule != "ottt" else x
            add_learner(f"{rule} K={chunk}", learner_for(work, rule, chunk, torch.optim.Adam), short)
            if may_choose_layout(work.build()):
                turned = learner_for(work, rule, chunk, torch.optim.Adam, channels_last=True)
                add_learner(f"{rule} channels-last K={chunk}", turned, short)
            if events is not None and chunk > 1:
                add_learner(f"{rule} events K={chunk}", learner_for(work, rule, chunk, torch.optim.Adam), events)
    loop = work.hand(weights_of(work))
    add("hand-written loop", lambda: loop.learn(x, labels))
    if work.build is WORKS["a"].build:
        tuned = Tuned(weights_of(work), x.shape[1])
        add("tuned loop", lambda: tuned.learn(x, labels))
    for chunk in chunks:
        add(f"products K={chunk}", work.products(x, work.build(), chunk))
        if events is not None and chunk > 1:
            add(f"sparse products K={chunk}", sparse_products(events, work.build(), chunk))
    return runs, steps


def trace_bytes(work: Work, rule: str, x: Tensor) -> int:
    """Return the bytes of the traces of a batch after a step, counted on one sample; 0 where chunks alone keep them."""
    if is_refused(work, rule, 1, 2):
        return 0
    learner = learner_for(work, rule, 1, Keeping)
    for x_t in x[:2, :1]:
        learner.net(x_t)
    traces = [module for module in learner.net.modules() if isinstance(module, ClockedTrace)]
    return x.shape[1] * sum(kept_size(tuple(trace.watched().values())) for trace in traces)


def kept_size(value: object) -> int:
    """Return the bytes of the tensors in nested tuples, the gaps between their rows included."""
    if isinstance(value, Tensor):
        return value.untyped_storage().nbytes()
    return sum(map(kept_size, value)) if isinstance(value, tuple) else 0


def rows_of(
    steps: int, milliseconds: dict[str, float], errors: dict[str, float], traced_bytes: dict[str, int]
) -> list[Any]:
    """Return the rows of a work's table."""
    rows = []
    for name, value in milliseconds.items():
        rule, _, chunk = name.partition(" K=")
        floor = milliseconds.get(f"products K={chunk or 1}")
        traced = ""
        rule = rule.removesuffix(" events").removesuffix(" channels-last")
        if rule in traced_bytes:
            moved = 0 if int(chunk) >= steps else 2 * traced_bytes[rule] / int(chunk)
            traced = f"{moved / 1e6:.2f}"
        rows.append(
            [
                name,
                f"{value:.3f}",
                f"{value / milliseconds['hand-written loop']:.2f}",
                "" if floor is None else f"{value / floor:.2f}",
                traced,
                f"{errors[name]:.0e}" if name in errors else "",
            ]
        )
    return rows


HEADER = ["contender", "ms/step", "x hand-written", "x products", "trace MB/step", "gradient error"]


def measure(letter: str, options: argparse.Namespace) -> dict[str, Any]:
    """Check, time and print one work; return its results."""
    work = WORKS[letter]
    steps, batch = options.steps or SIZES[letter][0], options.batch or SIZES[letter][1]
    chunks = sorted({steps if chunk == "T" else min(int(chunk), steps) for chunk in options.chunks})
    x, labels = work.inputs(steps, batch)
    print(f"\n({letter}) {work.title}, T = {steps}, B = {batch}; {float((x > 0).float().mean()):.2%} not zero")
    rules = [rule for rule in options.rules if any(not is_refused(work, rule, chunk, steps) for chunk in chunks)]
    errors = check_equal(work, rules, chunks, x, labels)
    runs, lengths = contenders(work, options.rules, chunks, x, labels, options.textbook_steps)
    seconds = interleaved(runs, options.rounds, CPU)
    milliseconds = {name: 1e3 * statistics.median(times) / lengths[name] for name, times in seconds.items()}
    conditions = {"work": letter, "steps": steps, "batch": batch, "threads": torch.get_num_threads()}
    peers, refused = peers_of(options.peers, conditions)
    for line in refused:
        print(f"left out: {line}")
    traced_bytes = {rule: trace_bytes(work, rule, x) for rule in rules}
    print(table(HEADER, rows_of(steps, milliseconds | peers, errors, traced_bytes)))
    reached = figures_of(letter, steps, milliseconds, peers)
    if reached:
        print()
        print(table(["figure", "measured", "reach", ""], reached))
    return {
        **conditions,
        "milliseconds_per_step": milliseconds,
        "peers": peers,
        "seconds": seconds,
        "timed_steps": lengths,
        "trace_bytes": traced_bytes,
        "gradient_error": errors,
        "figures": reached,
    }


def measure_memory(rules: list[str]) -> dict[str, dict[int, int]]:
    """Print and return the peak bytes of a training step, at T = 10 and 1,000, by chunks of the same length."""
    peaks = {
        rule: {steps: peak_of_a_step(RULES[rule](), steps, CPU, MEMORY_CHUNK) for steps in MEMORY_STEPS}
        for rule in rules
    }
    short, long = MEMORY_STEPS
    rows = [
        [rule, f"{peak[short] / 1e6:.3f}", f"{peak[long] / 1e6:.3f}", f"{peak[long] / peak[short]:.3f}", "at most 1.02"]
        for rule, peak in peaks.items()
    ]
    print(f"\npeak memory of a training step, MLP 578-128-10, B = 8, K = {MEMORY_CHUNK}, input streamed")
    print(table(["rule", f"MB at T = {short}", f"MB at T = {long:,}", "ratio", "reach"], rows))
    return peaks


def chunk_length(text: str) -> str:
    """Return a chunk as it is written: a number from 1, or T for the whole sequence."""
    if text != "T" and not (text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r}: write a number of steps from 1, or T for the whole sequence")
    return text


def main() -> None:
    """Check, measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--chunks", nargs="+", type=chunk_length, default=["1", "8", "16", "32", "T"])
    parser.add_argument("--steps", type=int, help="T, instead of the work's own")
    parser.add_argument("--batch", type=int, help="B, instead of the work's own")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--textbook-steps", type=int, default=16)
    parser.add_argument("--peers", nargs="+", default=[], metavar="FILE", help="JSON lines written by benchmarks/peers")
    parser.add_argument("--no-memory", action="store_true", help="leave out the peak memory")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(machine(CPU))
    results: dict[str, object] = {}
    for letter in options.work:
        if letter == "d" and recordings_folder() is None:
            print("\n(d) left out: no N-MNIST recordings in data/nmnist or $SNNLEARN_SHARED/data/nmnist")
            continue
        results[letter] = measure(letter, options)
    if not options.no_memory:
        results["peak_bytes"] = measure_memory(options.rules)
    save(f"chunk_speed-{datetime.now():%Y-%m-%d-%H%M%S}", CPU, {"rounds": options.rounds, **results})


if __name__ == "__main__":
    main()
