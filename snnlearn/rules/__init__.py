"""Learning rules: the axes, one page per paper, and how a rule is attached to a network."""

from collections.abc import Callable

from snnlearn.rules.attach import attach
from snnlearn.rules.axes import CHOICES, LearningRule, LocalHead, NoiseEstimate, RateTarget, RuleChoiceError
from snnlearn.rules.bptt import BPTT
from snnlearn.rules.drtrl import DRTRL
from snnlearn.rules.ottt import OTTT
from snnlearn.rules.report import AttachReport, ReportRow
from snnlearn.rules.sltt import SLTT

RULES: dict[str, Callable[[], LearningRule]] = {"sltt": SLTT, "ottt": OTTT, "drtrl": DRTRL, "bptt": BPTT}
"""Every published rule by its configuration name."""

__all__ = [
    "BPTT",
    "CHOICES",
    "DRTRL",
    "OTTT",
    "RULES",
    "SLTT",
    "AttachReport",
    "LearningRule",
    "LocalHead",
    "NoiseEstimate",
    "RateTarget",
    "ReportRow",
    "RuleChoiceError",
    "attach",
]
