"""The axes on which every online rule is a point, and which combinations are legal.

For hidden values h_t = f(h_{t-1}, y_t), y_t = W q_t + b, and a loss that reaches h_t by L_t,

    e_t = A_t e_{t-1} + p_t (x) q_t ,    dL/dW = sum_t L_t * e_t ,

and a rule chooses A_t (transition), a further filter of e, L_t (signal) and how e is stored. An illegal
combination cannot be constructed; a choice that is planned but not built is told from a misspelling.
"""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from snnlearn.rules.report import AttachReport

CHOICES: dict[str, tuple[str, ...]] = {
    "transition": ("none", "leak", "local", "through_time"),
    "trace_filter": ("none", "kappa"),
    "signal": ("spatial", "symmetric", "random", "direct", "target", "local_readout", "reward"),
    "storage": ("none", "pre", "synaptic"),
}
"""Every choice on every axis, planned ones included."""

BUILT: dict[str, tuple[str, ...]] = {
    "transition": ("none", "leak", "local", "through_time"),
    "trace_filter": ("none",),
    "signal": ("spatial",),
    "storage": ("none", "pre", "synaptic"),
}
"""The choices that exist today."""


class RuleChoiceError(ValueError):
    """A rule was asked for that is misspelt, not built yet, or illegal as a combination."""


@dataclass(frozen=True, kw_only=True)
class LearningRule:
    """A learning rule as a point on the axes; attach it to any network.

    `transition` how the trace advances: none, leak (one constant per layer), local (the neuron's own Jacobian),
    through_time (no trace: autograd through the whole sequence, not online). `trace_filter` a further filter of
    the trace: none, kappa. `signal` what the trace meets: spatial (backprop at step t), or a broadcast.
    `storage` none (no trace), pre (one number per input, legal with the leak transition alone) or synaptic.
    `window` (steps, with through_time alone) how far autograd goes back before the graph is cut; None: all the way.
    Raises RuleChoiceError for a misspelt, unbuilt or illegal choice, naming the one to change.

    >>> LearningRule(transition="leak", storage="pre").name
    'leak/none/spatial/pre'
    >>> LearningRule(transition="local", storage="pre")
    Traceback (most recent call last):
        ...
    snnlearn.rules.axes.RuleChoiceError: storage='pre' with transition='local': ...
    """

    transition: str = "leak"
    trace_filter: str = "none"
    signal: str = "spatial"
    storage: str = "pre"
    window: int | None = None
    title: str = ""

    def __post_init__(self) -> None:
        for axis, choices in CHOICES.items():
            _check_spelling(axis, getattr(self, axis), choices)
        self._check_legality()
        for axis, built in BUILT.items():
            value = getattr(self, axis)
            if value not in built:
                raise RuleChoiceError(
                    f"{axis}={value!r} is planned, not built: choose one of {', '.join(built)} for now"
                )

    @property
    def name(self) -> str:
        """The title, or the point on the axes."""
        return self.title or f"{self.transition}/{self.trace_filter}/{self.signal}/{self.storage}"

    @property
    def online(self) -> bool:
        """Whether learning runs forward in time, step by step."""
        return self.transition != "through_time"

    def attach(self, net: nn.Module) -> "AttachReport":
        """Make `net` learn by this rule and return what that means for each of its parameters.

        Sets every block's trace and every neuron's graph, drops running state, and may be called again with
        another rule. On a part of a network it attaches to that part alone.
        """
        from snnlearn.rules.attach import attach  # attach imports the axes

        return attach(net, self)

    def _check_legality(self) -> None:
        self._check_window()
        pair = f"storage={self.storage!r} with transition={self.transition!r}"
        if self.transition in ("none", "through_time"):
            if self.storage != "none":
                raise RuleChoiceError(f"{pair}: there is no trace to store; write storage='none'")
            if self.trace_filter != "none":
                raise RuleChoiceError(
                    f"trace_filter={self.trace_filter!r} with transition={self.transition!r}: there is no trace to "
                    f"filter; write trace_filter='none', or transition='leak'"
                )
        elif self.transition == "leak" and self.storage == "synaptic" and self.trace_filter == "none":
            raise RuleChoiceError(
                f"{pair}: one constant decay makes the trace the same for every unit, so this would keep the numbers "
                f"of storage='pre' once per unit; write storage='pre', or transition='local'"
            )
        elif self.storage == "none":
            raise RuleChoiceError(f"{pair}: a trace has to be kept somewhere; write storage='pre' or transition='none'")
        if self.storage == "pre" and self.transition == "local":
            raise RuleChoiceError(
                f"{pair}: a trace per input is legal only if one scalar decays the whole layer, and the local "
                f"Jacobian differs per unit; write storage='synaptic', or transition='leak'"
            )
        if self.storage == "pre" and self.trace_filter != "none":
            raise RuleChoiceError(
                f"storage='pre' with trace_filter={self.trace_filter!r}: the filter acts on each unit's own "
                f"eligibility; write storage='synaptic', or trace_filter='none'"
            )
        if self.transition == "through_time" and self.signal != "spatial":
            raise RuleChoiceError(
                f"signal={self.signal!r} with transition='through_time': backpropagation through time has its own "
                f"signal; write signal='spatial', or transition='leak'"
            )

    def _check_window(self) -> None:
        if self.window is None:
            return
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1:
            raise RuleChoiceError(f"window={self.window!r}: a whole number of steps, at least 1; write window=10")
        if self.transition != "through_time":
            raise RuleChoiceError(
                f"window={self.window} with transition={self.transition!r}: only a graph that is kept through time is "
                f"cut into windows; write transition='through_time', or window=None"
            )


def _check_spelling(axis: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"write {axis}={choices[0]!r}"
        raise RuleChoiceError(f"{axis}={value!r}: choose one of {', '.join(choices)}; {hint}")


__all__ = ["BUILT", "CHOICES", "LearningRule", "RuleChoiceError"]
