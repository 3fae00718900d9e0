"""Learning rules: the axes, one page per paper, and how a rule is attached to a network."""

from collections.abc import Callable

from snnlearn.rules.attach import attach
from snnlearn.rules.axes import CHOICES, LearningRule, LocalHead, NoiseEstimate, RateTarget, RuleChoiceError
from snnlearn.rules.bptt import BPTT
from snnlearn.rules.drtrl import DRTRL
from snnlearn.rules.fptt import FPTT
from snnlearn.rules.hlop import HLOP
from snnlearn.rules.ottt import OTTT
from snnlearn.rules.report import AttachReport, ReportRow
from snnlearn.rules.sltt import SLTT
from snnlearn.rules.stdp import STDP, RewardSTDP
from snnlearn.rules.tbptt import TruncatedBPTT

RULES: dict[str, Callable[..., LearningRule]] = {
    "sltt": SLTT,
    "ottt": OTTT,
    "drtrl": DRTRL,
    "tbptt": TruncatedBPTT,
    "bptt": BPTT,
}
"""Every published rule by its configuration name; called without arguments it has the paper's knobs."""

__all__ = [
    "BPTT",
    "CHOICES",
    "DRTRL",
    "FPTT",
    "HLOP",
    "OTTT",
    "RULES",
    "SLTT",
    "STDP",
    "AttachReport",
    "LearningRule",
    "LocalHead",
    "NoiseEstimate",
    "RateTarget",
    "ReportRow",
    "RewardSTDP",
    "RuleChoiceError",
    "TruncatedBPTT",
    "attach",
]
