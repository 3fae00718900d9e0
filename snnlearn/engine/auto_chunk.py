"""Choose how many steps are run at once: what fits the memory, what fits the cache, and what is fastest here.

**Bytes.** What a chunk keeps between its forward and its backward: `snnlearn.engine.chunk_bytes`.

**Cache.** The part that grows with K is written in the forward and read in the backward. Where it fits the last cache
it comes from there, so the largest such K is the first guess. A trace per synapse is read and written once per chunk
and wants K as large as can be; only a measurement says which of the two counts.

**Measurement.** From the first guess up to larger K while that is faster, else down to smaller ones while that costs
nothing, a few chunks each of the first batch, on a copy of the network: weights, state, statistics and random numbers
stay as they are. Where there are convolutions the best and K = 1 are measured with channels-last weights as well
(`snnlearn.engine.layout`), and these are taken where they are faster. Nothing is compiled here: that takes seconds,
which only who knows the length of the training can weigh (`snnlearn.kernels`).
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from snnlearn.engine.checks import refuse_non_finite
from snnlearn.engine.chosen_chunk import whole_sequence
from snnlearn.engine.chunk_bytes import BlockShape, NetworkShape
from snnlearn.engine.chunked import blocks_within_chunk, check_chunk, refuse_unfoldable
from snnlearn.engine.layout import lay_out_, may_choose_layout
from snnlearn.engine.machine import cache_size, free_memory
from snnlearn.engine.sequence import kept_apart, sequence_length
from snnlearn.engine.yardsticks import Problem
from snnlearn.nn.block import ETBlock
from snnlearn.nn.filtered_trace import FilteredTrace
from snnlearn.nn.recurrent import ETRecurrent
from snnlearn.nn.step_trace import StepTrace
from snnlearn.nn.synaptic_trace import SynapticTrace
from snnlearn.nn.trace_buffer import TraceBuffer
from snnlearn.rules.legality import RuleChoiceError

if TYPE_CHECKING:
    from snnlearn.engine.learner import OnlineLearner

log = logging.getLogger("snnlearn.engine")

LENGTHS = (1, 2, 4, 8, 16, 32, 64)
"""The chunk lengths that are tried."""

SHARE_OF_MEMORY = 0.25
"""The share of the free memory that a chunk may take."""

WORTH = 0.95
"""A larger chunk is taken where it needs at most this share of the time."""

CHUNKS = 3
"""How many chunks a measurement runs; the first, whose trace is empty, counts by itself."""


class Choice(NamedTuple):
    """The number of steps that are run at once, and why; `channels_last` where convolutions gain by that layout.

    >>> str(Choice(4, "the fastest"))
    'chunk=4: the fastest'
    """

    chunk: int
    why: str
    channels_last: bool = False

    def __str__(self) -> str:
        layout = " with channels-last weights" if self.channels_last else ""
        return f"chunk={self.chunk}{layout}: {self.why}"


def choose_chunk(
    learner: "OnlineLearner", x: Iterable[Tensor], y: Any, per_step_target: bool = False, budget: int | None = None
) -> Choice:
    """Return the chunk length for `learner` on a batch x, y as for `OnlineLearner.learn`, and say it in the log.

    `budget` bytes that a chunk may keep, by default `SHARE_OF_MEMORY` of what is free. A network or rule that cannot
    run in chunks gets 1. Nothing of the learner moves; x and y are read, so hand over no iterator, but what
    `peeked` makes of it.

    >>> from snnlearn import LI, OTTT, ETBlock, ETLinear, OnlineLearner
    >>> net = ETBlock(ETLinear(3, 2), LI())
    >>> learner = OnlineLearner(net, OTTT(), nn.functional.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
    >>> choose_chunk(learner, torch.ones(5, 4, 3), torch.tensor([0, 1, 0, 1]), budget=0).chunk
    1
    """
    whole = whole_sequence(learner, x)
    choice = (Choice(*whole) if whole else _refused(learner)) or _chosen(learner, x, y, per_step_target, budget)
    if whole is None or choice.chunk != learner.chunk:  # one that each sequence makes anew is told where it changes
        log.info("%s", choice)
    return choice


def chosen_on_batch(
    learner: "OnlineLearner", x: Iterable[Tensor], y: Any, per_step_target: bool
) -> tuple[int, bool, Iterable[Tensor], Any]:
    """Return the chunk length for `learner`, whether to choose anew on the next batch, and x and y to go on with.

    An empty batch tells nothing, and where one chunk has to be the whole sequence each batch has a length of its own.
    Lays out the weights of `learner.net` as was chosen. Raises NonFiniteError for an input with a NaN or an infinity.
    """
    steps, x = peeked(x)
    targets, y = peeked(y) if per_step_target else (y, y)
    if isinstance(x, Tensor):
        refuse_non_finite(x)
    first = next(iter(steps), None)
    if first is None or len(first) == 0:
        return 1, True, x, y
    whole = bool(blocks_within_chunk(learner.net))
    choice = choose_chunk(learner, x if whole else steps, targets, per_step_target)
    if choice.channels_last:
        lay_out_(learner.net, True)
    return choice.chunk, whole, x, y


def _refused(learner: "OnlineLearner") -> Choice | None:
    """Return the choice for a network, rule or update that leaves none."""
    try:
        check_chunk(2, "sequence", learner.rule)
        refuse_unfoldable(learner.net)
    except RuleChoiceError as error:
        return Choice(1, f"no other is possible. {error}")
    if learner.update == 1:
        return Choice(1, "an update after every step leaves no other")
    return None


def lengths_for(update: str | int, steps: int) -> list[int]:
    """Return the chunk lengths that are tried on a sequence of `steps`: powers of two, the whole sequence, an update.

    An update after so many steps has to be a multiple of each.

    >>> lengths_for("sequence", 20), lengths_for(6, 20), lengths_for(1, 20)
    ([1, 2, 4, 8, 16, 20], [1, 2, 6], [1])
    """
    lengths = {*LENGTHS, *([] if isinstance(update, str) else [update]), steps}
    longest = min(steps, LENGTHS[-1])
    return sorted(n for n in lengths if n <= longest and (isinstance(update, str) or update % n == 0))


def _chosen(learner: "OnlineLearner", x: Iterable[Tensor], y: Any, per_step_target: bool, budget: int | None) -> Choice:
    trial = _Trial(learner, x, y, per_step_target)
    shape, device = trial.shape(), trial.device
    budget = int(SHARE_OF_MEMORY * free_memory(device)) if budget is None else budget
    cache = cache_size(device)
    lengths = lengths_for(learner.update, trial.problem.steps)
    fitting = [length for length in lengths if length == 1 or shape.kept(length) <= budget]
    cached = [length for length in fitting if shape.growing(length) <= cache]
    seconds = _climb(fitting, cached[-1] if cached else 1, trial.seconds)
    chunk = best_of(seconds)
    times, channels_last = _listed(seconds), False
    if may_choose_layout(learner.net):
        tried = {length: trial.seconds(length, channels_last=True) for length in {1, chunk}}
        channels_last = min(tried.values()) < WORTH * seconds[chunk]
        chunk = best_of(tried) if channels_last else chunk
        times += f", with channels-last weights {_listed(tried)}"
    passed = "" if fitting == lengths else f"; {fitting[-1]} is the largest that the budget allows"
    why = (
        f"ms a step by chunk length {times}; it keeps {_mib(shape.kept(chunk))} of a budget of {_mib(budget)}, "
        f"{_mib(shape.growing(chunk))} of it beside a cache of {_mib(cache)}{passed}"
    )
    return Choice(chunk, why, channels_last)


def _listed(seconds: dict[int, float]) -> str:
    return ", ".join(f"{length}: {1e3 * seconds[length]:.3g}" for length in sorted(seconds))


def _mib(size: int) -> str:
    return f"{size / 2**20:,.3g} MiB"


def _climb(lengths: Sequence[int], first: int, measure: Callable[[int], float]) -> dict[int, float]:
    """Return seconds a step by length, from `first` upwards while it pays, else downwards while it costs nothing."""
    begin = lengths.index(first)
    seconds = {first: measure(first)}
    for length, shorter in zip(lengths[begin + 1 :], lengths[begin:], strict=False):
        seconds[length] = measure(length)
        if seconds[length] > WORTH * seconds[shorter]:
            break
    if best_of(seconds) == first:
        for length, longer in zip(lengths[:begin][::-1], lengths[: begin + 1][::-1], strict=False):
            seconds[length] = measure(length)
            if WORTH * seconds[length] > seconds[longer]:
                break
    return seconds


def best_of(seconds: dict[int, float]) -> int:
    """Return the shortest length whose time is the best but for a few per cent.

    >>> best_of({1: 3.0, 2: 1.02, 4: 1.0})
    2
    """
    fastest = min(seconds.values())
    return min(length for length, value in seconds.items() if WORTH * value <= fastest)


class _Paced:
    """The steps of a sequence, each asked for in its turn: when a chunk begins, the one before has ended."""

    def __init__(self, x: Sequence[Tensor] | Tensor, chunk: int, device: torch.device) -> None:
        self.x, self.chunk, self.device = x, chunk, device
        self.marks: list[float] = []

    def __len__(self) -> int:
        return len(self.x)

    def __iter__(self) -> Iterator[Tensor]:
        for t, x_t in enumerate(self.x):
            if t % self.chunk == 0:
                self.mark()
            yield x_t
        self.mark()

    def mark(self) -> None:
        """Note the time when all that was asked for is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.marks.append(perf_counter())


class _Trial:
    """A copy of a learner and steps of its first batch: the last, where answers are, or the first of an iterable."""

    def __init__(self, learner: "OnlineLearner", x: Iterable[Tensor], y: Any, per_step_target: bool) -> None:
        self.learner, self.length, self.per_step_target = learner, sequence_length(x), per_step_target
        most = CHUNKS * LENGTHS[-1]
        sliced = isinstance(x, Tensor | list | tuple) and (not per_step_target or isinstance(y, Tensor | list | tuple))
        head = x[-most:] if sliced else list(itertools.islice(kept_apart(x), most))  # type: ignore[index]
        if per_step_target:
            y = y[-most:] if sliced else list(itertools.islice(kept_apart(y), most))
        self.channels_last = False
        self.problem = Problem(learner.net, (head, y), learner.loss, per_step_target, None)
        self.device = self.problem.x[0].device

    def run(self, chunk: int, steps: int) -> list[float]:
        """Learn from the last `steps` steps and return the times at which chunks began, and the end."""
        problem, learner = self.problem, self.learner
        x = problem.x[-steps:]
        paced = _Paced(x, chunk, self.device)
        with problem.drawing(), torch.enable_grad():
            optimizer = torch.optim.SGD(problem.net.parameters(), lr=0.0)
            twin = type(learner)(problem.net, learner.rule, problem.loss, optimizer, update=learner.update, chunk=chunk)
            twin.learn(paced, problem.y[-steps:] if self.per_step_target else problem.y, self.per_step_target)
        return paced.marks

    def seconds(self, chunk: int, channels_last: bool = False) -> float:
        """Return the seconds that a step of the sequence takes in chunks of this length."""
        if channels_last != self.channels_last:
            lay_out_(self.problem.net, channels_last)
            self.channels_last = channels_last
        steps = (
            min(self.problem.steps // chunk, CHUNKS) * chunk
        )  # whole chunks: the next one's begin is the end of each
        marks = self.run(chunk, steps)
        first, rest = marks[1] - marks[0], marks[-1] - marks[1]
        if steps <= chunk:
            return first / steps
        later = rest / (steps - chunk)
        return later if self.length is None else (first + (self.length - chunk) * later) / self.length

    def shape(self) -> NetworkShape:
        """Run two steps one by one, and return what a chunk of the network is made of."""
        net, seen = self.problem.net, _Seen()
        inside = {id(part) for block in net.modules() if isinstance(block, ETBlock) for part in block.modules()}
        handles = [m.register_forward_hook(seen.block) for m in net.modules() if isinstance(m, ETBlock)]
        outside = [m for m in net.modules() if id(m) not in inside and next(m.children(), None) is None]
        handles += [m.register_forward_hook(seen.other) for m in outside]
        try:
            self.run(1, min(2, self.problem.steps))
        finally:
            for handle in handles:
                handle.remove()
        return NetworkShape(tuple(seen.blocks.values()), sum(seen.others.values()))


class _Seen:
    """What hooks see of one step: the blocks by their sizes, other layers by the bytes of what they make."""

    def __init__(self) -> None:
        self.blocks: dict[int, BlockShape] = {}
        self.others: dict[int, int] = {}

    def block(self, block: nn.Module, inputs: Any, output: Tensor) -> None:
        """Take in a block."""
        assert isinstance(block, ETBlock)
        trace, x = block.connection.trace, inputs[0]
        hidden, entering = 0, x[0].numel() + (output[0].numel() if isinstance(block.connection, ETRecurrent) else 0)
        if isinstance(trace, TraceBuffer | FilteredTrace):
            hidden = len(trace.leak.drive)
        elif isinstance(trace, StepTrace):
            hidden = len(block.neuron.state_names)
        if isinstance(trace, StepTrace) and trace.filter is not None:
            hidden += len(trace.filter.drive)
        synaptic = isinstance(trace, SynapticTrace)
        if isinstance(trace, StepTrace) and not synaptic:  # each step leaves its own trace: counted twice
            entering *= 2
        size = output.element_size()
        self.blocks[id(block)] = BlockShape(len(x), entering, output[0].numel(), hidden, synaptic, size)

    def other(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Take in another layer, unless what it makes is a view of what it got."""
        made = {t.untyped_storage().data_ptr() for t in _tensors(output)}
        kept = [x for x in _tensors(inputs) if x.untyped_storage().data_ptr() not in made]
        self.others[id(module)] = sum(x.numel() * x.element_size() for x in kept)


def _tensors(output: Any) -> list[Tensor]:
    """Return the tensors among what a layer takes or gives; sparse events are data, and not counted."""
    made = output if isinstance(output, list | tuple) else (output,)
    return [value for value in made if isinstance(value, Tensor) and value.layout is torch.strided]


def peeked(values: Any) -> tuple[Any, Any]:
    """Return (values to look at, the same values to go through afterwards); an iterator is read in part, and rejoined.

    >>> head, values = peeked(iter([1, 2]))
    >>> head, list(values)
    ([1, 2], [1, 2])
    """
    if not isinstance(values, Iterator):
        return values, values
    values = kept_apart(values)
    head = list(itertools.islice(values, LENGTHS[-1]))
    return head, itertools.chain(head, values)


__all__ = [
    "LENGTHS",
    "Choice",
    "best_of",
    "choose_chunk",
    "chosen_on_batch",
    "peeked",
]
