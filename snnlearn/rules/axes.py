"""The axes on which every online rule is a point, and which combinations are legal.

For hidden values h_t = f(h_{t-1}, y_t), y_t = W q_t + b, and a loss that reaches h_t by L_t,

    e_t = A_t e_{t-1} + p_t (x) q_t ,    dL/dW = sum_t L_t * e_t ,

and a rule chooses A_t (transition), a further filter of e, L_t (signal), how e is stored, and at which steps it learns.
An illegal combination cannot be constructed (`snnlearn.rules.legality`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from snnlearn.functional.arguments import is_number, is_whole
from snnlearn.nn.factored_trace import PostTrace
from snnlearn.rules.arguments import check_flag, check_number, check_share
from snnlearn.rules.legality import CHOICES, Point, RuleChoiceError, check

if TYPE_CHECKING:
    from snnlearn.rules.report import AttachReport


@dataclass(frozen=True, kw_only=True)
class LocalHead:
    """A readout of the block's own: `kind` random, trained, sinusoid, square; `loss` cross_entropy, mse, smooth_l1.

    >>> LocalHead(kind="trained").loss
    'cross_entropy'
    """

    kind: str = "random"
    loss: str = "cross_entropy"


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """The contrastive loss of a block: `decay` of the traces per step, `temperature` that divides their likeness.

    `trained` whether the projection of the label is learned. Raises RuleChoiceError for a decay outside 0 .. 1 or a
    temperature that is not above 0.

    >>> Contrast().decay
    0.98
    """

    decay: float = 0.98
    temperature: float = 1.0
    trained: bool = True

    def __post_init__(self) -> None:
        check_flag("trained", self.trained)
        check_share("decay", check_number("decay", self.decay, "0.98"), "0.98")
        if check_number("temperature", self.temperature, "1.0") <= 0:
            raise RuleChoiceError(
                f"temperature={self.temperature!r}: it divides, and is above 0; write temperature=1.0, or more for "
                f"wide layers"
            )


@dataclass(frozen=True, kw_only=True)
class NoiseEstimate:
    """How the noise signal estimates do/ds: `scale` of the noise added to the spikes, `momentum` of the running mean.

    Raises RuleChoiceError for a scale that is not above 0 or a momentum outside [0, 1).

    >>> NoiseEstimate().momentum
    0.99
    """

    scale: float = 0.1
    momentum: float = 0.99

    def __post_init__(self) -> None:
        if not (is_number(self.scale) and self.scale > 0):
            raise RuleChoiceError(f"scale={self.scale!r}: the noise has a finite spread above 0; write scale=0.1")
        if not (is_number(self.momentum) and 0 <= self.momentum < 1):
            raise RuleChoiceError(f"momentum={self.momentum!r}: it lies in 0 .. 1, below 1; write momentum=0.99")


@dataclass(frozen=True, kw_only=True)
class RateTarget:
    """Hold every unit of the hidden blocks near `rate` (spikes per step), with `weight` in the loss.

    >>> RateTarget(rate=0.05, weight=1.0).rate
    0.05
    """

    rate: float
    weight: float

    def __post_init__(self) -> None:
        check_share("rate", check_number("rate", self.rate, "0.05"), "0.05")
        if check_number("weight", self.weight, "1.0") < 0:
            raise RuleChoiceError(f"weight={self.weight!r}: the weight of a rate in the loss is at least 0; write 1.0")


@dataclass(frozen=True, kw_only=True)
class LearningRule:
    """A learning rule as a point on the axes; attach it to any network.

    `transition` how the trace advances: none, leak (one constant per layer), ratio (of the sending neurons' membranes),
    local (the neuron's own Jacobian), through_time (no trace: autograd through the whole sequence, not online).
    `trace_filter` a further filter of the trace: none, kappa (the leak of the readout), above (the leak of the next
    block), double (two decays). `signal` what the trace meets: spatial (backprop at step t), alignment (the same with
    fixed random matrices on the way down), symmetric, random and adaptive (broadcasts of the output's error), target (a
    projection of the label), local_readout, contrastive (a loss between the traces of the input's path and of the
    target's), noise, reward. `storage` none (no trace), pre (one number per input),
    synaptic (one per synapse) or rank_one. `relay` what the signal is multiplied by: instantaneous (ds/dy of the step)
    or mean (its leaky mean, in blocks that have a filter where the rule has one). `learn_on` the steps that learn: all,
    last (the last `learn_steps`), random (`learn_steps` drawn anew for every sequence), poisson (each step with
    probability 1 / `learn_steps`).

    `window` (steps, with through_time alone) how far autograd goes back before the graph is cut; None: all the way.
    `truncate_trace` (with storage synaptic alone) lets a convolution, whose trace nobody can keep beyond a chunk, drop
    what came before each chunk; else one chunk has to be the whole sequence.
    `trace_decay` in place of the neuron's own leak (transition leak, or storage rank_one); `filter_decay` in place of
    the filter's (two numbers for double); `forgetting` of the rank-one output factor; `post` the post-synaptic trace of
    S-TLLR; `head`, `contrast`, `noise` and `rate` as their classes say; `seed` of what is drawn. Raises RuleChoiceError
    for a misspelt or illegal choice, naming the one to change.

    >>> LearningRule(transition="leak", storage="pre").name
    'leak/none/spatial/pre'
    >>> LearningRule(transition="local", storage="pre")
    Traceback (most recent call last):
        ...
    snnlearn.rules.legality.RuleChoiceError: storage='pre' with transition='local': ...
    """

    transition: str = "leak"
    trace_filter: str = "none"
    signal: str = "spatial"
    storage: str = "pre"
    relay: str = "instantaneous"
    learn_on: str = "all"
    learn_steps: int | None = None
    trace_decay: float | None = None
    filter_decay: float | tuple[float, float] | None = None
    forgetting: float = 0.0
    post: PostTrace | None = None
    head: LocalHead | None = None
    contrast: Contrast | None = None
    noise: NoiseEstimate | None = None
    rate: RateTarget | None = None
    seed: int = 0
    window: int | None = None
    truncate_trace: bool = False
    title: str = ""

    def __post_init__(self) -> None:
        _check_numbers(self)
        check(
            Point(
                transition=self.transition,
                trace_filter=self.trace_filter,
                signal=self.signal,
                storage=self.storage,
                relay=self.relay,
                learn_on=self.learn_on,
                learn_steps=self.learn_steps,
                trace_decay=self.trace_decay,
                filter_decay=self.filter_decay,
                forgetting=self.forgetting,
                post_decay=None if self.post is None else self.post.decay,
                head=None if self.head is None else (self.head.kind, self.head.loss),
                has_contrast=self.contrast is not None,
                has_noise=self.noise is not None,
                has_rate=self.rate is not None,
                window=self.window,
                truncates=self.truncate_trace,
            )
        )

    @property
    def name(self) -> str:
        """The title, or the point on the axes."""
        return self.title or f"{self.transition}/{self.trace_filter}/{self.signal}/{self.storage}"

    @property
    def online(self) -> bool:
        """Whether learning runs forward in time, step by step."""
        return self.transition != "through_time"

    def attach(self, net: nn.Module, chunk: int | None = 1) -> "AttachReport":
        """Make `net` learn by this rule, in chunks of `chunk` steps, and return what that means for its parameters.

        Sets every block's trace and signal and every neuron's graph, drops running state, and may be called again with
        another rule. On a part of a network it attaches to that part alone.
        """
        from snnlearn.rules.attach import attach  # attach imports the axes

        return attach(net, self, chunk)


def _check_numbers(rule: LearningRule) -> None:
    """Refuse what is no number of its range, or no object of its kind, before it meets a comparison."""
    parts = {"post": PostTrace, "head": LocalHead, "contrast": Contrast, "noise": NoiseEstimate, "rate": RateTarget}
    for name, kind in parts.items():
        value = getattr(rule, name)
        if not isinstance(value, kind | None):
            raise RuleChoiceError(f"{name}={value!r}: it takes {kind.__name__}(...), or None; see its docstring")
    check_share("trace_decay", rule.trace_decay, "0.5")
    pair = rule.filter_decay if isinstance(rule.filter_decay, tuple) else (rule.filter_decay,)
    for decay in pair:
        check_share("filter_decay", decay, "0.9", below_one=True)
    check_share("forgetting", check_number("forgetting", rule.forgetting, "0.9"), "0.9", below_one=True)
    if rule.post is not None:
        for name, value in rule.post._asdict().items():
            check_number(f"post.{name}", value, "0.5")
    check_flag("truncate_trace", rule.truncate_trace)
    if not is_whole(rule.seed, 0):
        raise RuleChoiceError(f"seed={rule.seed!r}: a whole number from 0; write seed=0")


__all__ = ["CHOICES", "Contrast", "LearningRule", "LocalHead", "NoiseEstimate", "RateTarget", "RuleChoiceError"]
