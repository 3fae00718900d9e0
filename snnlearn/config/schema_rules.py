"""Knobs of the group `rule`: what each paper leaves open, under the names that `snnlearn.rules` gives it."""

from dataclasses import dataclass
from typing import Literal

from snnlearn.config.knob import knob
from snnlearn.config.schema_signals import SignalRuleConfig

__all__ = ["RuleConfig"]


@dataclass(frozen=True, kw_only=True)
class SLTTConfig:
    """Gradient through the present step only."""

    name: Literal["sltt"] = knob("spatial learning through time: no trace at all")


@dataclass(frozen=True, kw_only=True)
class OTTTConfig:
    """Online training through time."""

    name: Literal["ottt"] = knob("online training through time: a trace of the input, decaying with the neuron's leak")


@dataclass(frozen=True, kw_only=True)
class DRTRLConfig:
    """Real-time recurrent learning, cut to each unit's own states."""

    name: Literal["drtrl"] = knob("D-RTRL: a trace per synapse, exact for any neuron; for fully connected layers")


@dataclass(frozen=True, kw_only=True)
class TBPTTConfig:
    """Backpropagation through time within windows."""

    name: Literal["tbptt"] = knob("truncated backpropagation through time; its memory grows with the window")
    window: int = knob("steps of a window, between two cuts of the graph", unit="steps", at_least=1)


@dataclass(frozen=True, kw_only=True)
class BPTTConfig:
    """Backpropagation through time."""

    name: Literal["bptt"] = knob("backpropagation through time: the yardstick; its memory grows with the steps")


RuleConfig = OTTTConfig | SLTTConfig | DRTRLConfig | SignalRuleConfig | TBPTTConfig | BPTTConfig
