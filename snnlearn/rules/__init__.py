"""Learning rules: the axes, one page per paper, and how a rule is attached to a network."""

from collections.abc import Callable

from snnlearn.rules.approximate_otpe import ApproximateOTPE
from snnlearn.rules.attach import attach
from snnlearn.rules.axes import CHOICES, Contrast, LearningRule, LocalHead, NoiseEstimate, RateTarget, RuleChoiceError
from snnlearn.rules.bptt import BPTT
from snnlearn.rules.decolle import DECOLLE
from snnlearn.rules.dfa import DFA
from snnlearn.rules.drtrl import DRTRL
from snnlearn.rules.ell import ELL
from snnlearn.rules.eprop import EProp
from snnlearn.rules.es_drtrl import ESDRTRL
from snnlearn.rules.etlp import ETLP
from snnlearn.rules.feedback_alignment import FeedbackAlignment
from snnlearn.rules.fptt import FPTT
from snnlearn.rules.hlop import HLOP
from snnlearn.rules.hypr import HYPR
from snnlearn.rules.ndot import NDOT
from snnlearn.rules.opzo import OPZO
from snnlearn.rules.ostl import OSTL
from snnlearn.rules.osttp import OSTTP
from snnlearn.rules.otpe import OTPE
from snnlearn.rules.ottt import OTTT
from snnlearn.rules.report import AttachReport, ReportRow
from snnlearn.rules.reward_modulated import RewardModulated
from snnlearn.rules.s_tllr import STLLR
from snnlearn.rules.sltt import SLTT
from snnlearn.rules.sltt_k import SLTTK
from snnlearn.rules.stdp import STDP, RewardSTDP
from snnlearn.rules.superspike import SuperSpike
from snnlearn.rules.tbptt import TruncatedBPTT
from snnlearn.rules.tess import TESS
from snnlearn.rules.traces_propagation import TracesPropagation

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
    "decolle": DECOLLE,
    "dfa": DFA,
    "ell": ELL,
    "etlp": ETLP,
    "feedback_alignment": FeedbackAlignment,
    "opzo": OPZO,
    "osttp": OSTTP,
    "tess": TESS,
    "traces_propagation": TracesPropagation,
    "tbptt": TruncatedBPTT,
    "bptt": BPTT,
}
"""Every published rule by its configuration name; called without arguments it has the paper's knobs."""

__all__ = [
    "BPTT",
    "CHOICES",
    "DECOLLE",
    "DFA",
    "DRTRL",
    "ELL",
    "ESDRTRL",
    "ETLP",
    "FPTT",
    "HLOP",
    "HYPR",
    "NDOT",
    "OPZO",
    "OSTL",
    "OSTTP",
    "OTPE",
    "OTTT",
    "RULES",
    "SLTT",
    "SLTTK",
    "STDP",
    "STLLR",
    "TESS",
    "ApproximateOTPE",
    "AttachReport",
    "Contrast",
    "EProp",
    "FeedbackAlignment",
    "LearningRule",
    "LocalHead",
    "NoiseEstimate",
    "RateTarget",
    "ReportRow",
    "RewardModulated",
    "RewardSTDP",
    "RuleChoiceError",
    "SuperSpike",
    "TracesPropagation",
    "TruncatedBPTT",
    "attach",
]
