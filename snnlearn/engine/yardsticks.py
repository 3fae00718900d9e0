"""The gradients that rules are held against: BPTT, and BPTT with the edges cut that a report's row names.

Everything here works on copies: the network, its state, mode, rule, buffers, `.grad` and the random state of torch are
as before afterwards.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snnlearn.engine.losses import StepLoss
from snnlearn.engine.oracle import CARRIERS, bptt_gradients
from snnlearn.engine.sequence import kept_apart, map_outputs
from snnlearn.nn.block import ETBlock
from snnlearn.nn.state import stashed_state
from snnlearn.rules.attach import attach
from snnlearn.rules.bptt import BPTT
from snnlearn.rules.wiring import places_of
from snnlearn.rules.yardsticks import CUT_ALL, CUT_BEYOND, CUT_LATER, CUT_WINDOWS, FULL, RECURRENT_CUT

CUTS = {FULL: "none", CUT_ALL: "all", CUT_LATER: "later", CUT_BEYOND: "beyond", CUT_WINDOWS: "windows"}
"""Every yardstick that a claim can be checked against, by its name in a report, and the blocks that it cuts.

Each may end in `RECURRENT_CUT`. Any other name is not checked.
"""


class Problem:
    """A network, a batch of sequences and a loss, on copies of one dtype: what gradients are taken of.

    `batch` (x [T, B, ...] or an iterable of [B, ...], y); `per_step_target` as for `OnlineLearner.learn`; `dtype` of
    the copies (None: as they are); `seed` of the random numbers that every run on them draws, dropout masks for one.
    A network that is in eval() as a whole is measured in train(), where learning happens. Raises ValueError for a
    batch that is no pair or has no step.

    >>> net = nn.Linear(2, 1)
    >>> Problem(net, (torch.ones(3, 4, 2), None), lambda output, target: output.mean(), False, torch.float64).steps
    3
    """

    def __init__(
        self,
        net: nn.Module,
        batch: Sequence[Any],
        loss: StepLoss,
        per_step_target: bool,
        dtype: torch.dtype | None,
        seed: int = 0,
    ) -> None:
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            length = f" of length {len(batch)}" if isinstance(batch, Sized) else ""
            raise ValueError(
                f"batch is a {type(batch).__name__}{length}: pass a pair (x, y), x [T, B, ...] and y as for "
                f"OnlineLearner.learn; write fidelity(net, (x, y), ...)"
            )

        def cast(value: Any) -> Any:
            floating = isinstance(value, Tensor) and value.is_floating_point()
            return value.detach().to(dtype) if floating and dtype is not None else value

        x, y = batch
        self.x = cast(x) if isinstance(x, Tensor) else [cast(x_t) for x_t in kept_apart(x)]
        self.y = map_outputs(cast, list(kept_apart(y)) if per_step_target and not isinstance(y, Tensor) else y)
        self.net, self.per_step_target, self.dtype, self.seed = working_copy(net, dtype), per_step_target, dtype, seed
        self.brought = _stripped(self.net)
        self.loss = loss
        if isinstance(loss, nn.Module):
            self.loss = working_copy(loss, dtype)
        self.steps = len(self.x)
        if self.steps == 0:
            raise ValueError("the batch has no steps (T = 0): there is no gradient to compare; pass T >= 1")

    @property
    def batch_size(self) -> int:
        """Number of sequences B."""
        return int(self.x[0].shape[0])

    @property
    def learned(self) -> list[str]:
        """Names of the parameters that require a gradient."""
        return [name for name, parameter in self.net.named_parameters() if parameter.requires_grad]

    def prefix(self, steps: int) -> "Problem":
        """Return the same with the first `steps` steps of the batch."""
        part = copy.copy(self)
        part.x, part.steps = self.x[:steps], steps
        if self.per_step_target:
            part.y = self.y[:steps]
        return part

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draw the same random numbers in every run, and put torch's generators back afterwards."""
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            torch.default_generator.manual_seed(self.seed)  # torch.manual_seed also queues work for absent devices
            if devices:
                torch.cuda.manual_seed_all(self.seed)
            yield


def _stripped(net: nn.Module) -> dict[str, Any]:
    """Take the rule off `net`, and return what it had brought with it: feedback, the weights of local readouts."""
    before = net.state_dict()
    attach(net, BPTT())
    return {name: value for name, value in before.items() if name not in net.state_dict()}


def working_copy(net: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """Return a deep copy of `net` without its running state and `.grad`, in train() and in `dtype` (None: its own).

    A module with some parts in train() and some in eval() keeps them so.

    >>> working_copy(nn.Linear(2, 1), torch.float64).weight.dtype
    torch.float64
    """
    with stashed_state(net):
        twin = copy.deepcopy(net)
    twin.zero_grad(set_to_none=True)
    if not twin.training:
        twin.train()
    return twin if dtype is None else twin.to(dtype)


class Yardsticks:
    """BPTT's gradients of one problem, each computed when first asked for.

    Parameters that several layers share are untied in a copy, so that what is cut can differ from layer to layer; their
    gradient is the sum over the layers.

    >>> from snnlearn.nn import ETLinear, LI
    >>> net, x = ETBlock(ETLinear(2, 1), LI()), torch.ones(3, 4, 2)
    >>> problem = Problem(net, (x, None), lambda output, target: output.mean(), False, torch.float64)
    >>> yardsticks = Yardsticks(problem)
    >>> bool(torch.equal(yardsticks.full["connection.bias"], yardsticks.named("connection.bias", CUT_LATER, True)))
    True
    >>> yardsticks.named("connection.bias", "another", True) is None
    True
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.net, self.aliases = _untied(problem.net)
        self._found: dict[tuple[str | tuple[str, ...], bool, bool, int | None], dict[str, Tensor]] = {}

    @property
    def full(self) -> dict[str, Tensor]:
        """BPTT's gradient of every parameter that requires one."""
        gradients = self._gradients((), False, False)
        return {name: torch.stack([gradients[part] for part in parts]).sum(0) for name, parts in self.aliases.items()}

    def named(self, parameter: str, yardstick: str, online: bool, window: int | None = None) -> Tensor | None:
        """Return the gradient of `parameter` by `yardstick`, or None where that name says nothing here.

        `online` takes the running mean of a `SequenceLoss` as online rules do: what came before as a constant. `window`
        the steps of a window, for the yardstick that is cut between windows.
        """
        recurrent = yardstick.endswith(RECURRENT_CUT)
        cut = CUTS.get(yardstick.removesuffix(RECURRENT_CUT))
        if cut is None or parameter not in self.aliases:
            return None
        window = window if cut == "windows" else None
        if cut == "windows" and window is None:
            return None
        parts = []
        for alias in self.aliases[parameter]:
            if cut in ("none", "all", "windows"):
                named: str | tuple[str, ...] | None = "all" if cut == "all" else ()
            else:
                named = _carriers_beyond(self.net, alias, with_next=cut == "beyond")
            if named is None:
                return None
            parts.append(self._gradients(named, recurrent, online, window)[alias])
        return torch.stack(parts).sum(0)

    def _gradients(
        self, cut: str | tuple[str, ...], recurrent: bool, mean: bool, window: int | None = None
    ) -> dict[str, Tensor]:
        key = (cut, recurrent, mean, window)
        if key not in self._found:
            problem = self.problem
            with problem.drawing():
                self._found[key] = bptt_gradients(
                    self.net, problem.x, problem.y, problem.loss, cut, problem.per_step_target, recurrent, mean, window
                )
        return self._found[key]


def _untied(net: nn.Module) -> tuple[nn.Module, dict[str, list[str]]]:
    """Return a copy in which no two layers share a parameter, and for each parameter's name those of its parts."""
    twin = copy.deepcopy(net)
    first: dict[int, str] = {}
    slots: set[tuple[int, str]] = set()
    parts: dict[str, list[str]] = {}
    for name, parameter in list(twin.named_parameters(remove_duplicate=False)):
        path, _, leaf = name.rpartition(".")
        owner = twin.get_submodule(path)
        if not parameter.requires_grad or (id(owner), leaf) in slots:
            continue
        slots.add((id(owner), leaf))
        if id(parameter) in first:
            owner._parameters[leaf] = nn.Parameter(parameter.detach().clone())
        original = first.setdefault(id(parameter), name)
        parts.setdefault(original, []).append(name)
    return twin, parts


def innermost(net: nn.Module, name: str, kinds: type | tuple[type, ...]) -> str | None:
    """Return the name of the innermost module of `kinds` around the parameter `name`; None where there is none.

    >>> from snnlearn.nn import ETLinear, LI
    >>> innermost(nn.Sequential(ETBlock(ETLinear(2, 1), LI())), "0.connection.bias", ETBlock)
    '0'
    """
    path = name.split(".")[:-1]
    names = [".".join(path[:length]) for length in range(len(path), -1, -1)]
    return next((place for place in names if isinstance(net.get_submodule(place), kinds)), None)


def _carriers_beyond(net: nn.Module, parameter: str, with_next: bool) -> tuple[str, ...] | None:
    """Return what carries state outside the block of `parameter`, or outside it and the next: what a cut means for it.

    Nothing goes back from a parameter to the blocks before its own, so cutting those too changes nothing. None for a
    parameter outside any block.
    """
    name = innermost(net, parameter, ETBlock)
    if name is None:
        return None
    block = net.get_submodule(name)
    kept = [block]
    if with_next:
        kept += [place.next for place in places_of(net) if place.block is block and place.next is not None]
    own = {id(module) for one in kept for module in one.modules()}
    found: Iterable[tuple[str, nn.Module]] = net.named_modules()
    return tuple(name for name, module in found if isinstance(module, CARRIERS) and id(module) not in own)


__all__ = ["CUTS", "Problem", "Yardsticks", "innermost", "working_copy"]
