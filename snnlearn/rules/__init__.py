"""Learning rules: the axes, one page per paper, and how a rule is attached to a network."""

from collections.abc import Callable

from snnlearn.rules.approximate_otpe import ApproximateOTPE
from snnlearn.rules.attach import attach
from snnlearn.rules.axes import CHOICES, LearningRule, LocalHead, NoiseEstimate, RateTarget, RuleChoiceError
from snnlearn.rules.bptt import BPTT
from snnlearn.rules.drtrl import DRTRL
from snnlearn.rules.eprop import EProp
from snnlearn.rules.es_drtrl import ESDRTRL
from snnlearn.rules.hypr import HYPR
from snnlearn.rules.ndot import NDOT
from snnlearn.rules.ostl import OSTL
from snnlearn.rules.otpe import OTPE
from snnlearn.rules.ottt import OTTT
from snnlearn.rules.report import AttachReport, ReportRow
from snnlearn.rules.s_tllr import STLLR
from snnlearn.rules.sltt import SLTT
from snnlearn.rules.sltt_k import SLTTK
from snnlearn.rules.superspike import SuperSpike

RULES: dict[str, Callable[..., LearningRule]] = {
    "sltt": SLTT,
    "sltt_k": SLTTK,
    "ottt": OTTT,
    "ndot": NDOT,
    "s_tllr": STLLR,
    "approximate_otpe": ApproximateOTPE,
    "otpe": OTPE,
    "drtrl": DRTRL,
    "ostl": OSTL,
    "hypr": HYPR,
    "es_drtrl": ESDRTRL,
    "eprop": EProp,
    "superspike": SuperSpike,
    "bptt": BPTT,
}
"""Every published rule by its configuration name; called without arguments it has the paper's knobs."""

__all__ = [
    "BPTT",
    "CHOICES",
    "DRTRL",
    "ESDRTRL",
    "HYPR",
    "NDOT",
    "OSTL",
    "OTPE",
    "OTTT",
    "RULES",
    "SLTT",
    "SLTTK",
    "STLLR",
    "ApproximateOTPE",
    "AttachReport",
    "EProp",
    "LearningRule",
    "LocalHead",
    "NoiseEstimate",
    "RateTarget",
    "ReportRow",
    "RuleChoiceError",
    "SuperSpike",
    "attach",
]
