"""Learning rules: the axes, one page per paper, and how a rule is attached to a network."""

from collections.abc import Callable

from snnlearn.rules.attach import attach
from snnlearn.rules.axes import CHOICES, LearningRule, LocalHead, NoiseEstimate, RateTarget, RuleChoiceError
from snnlearn.rules.bptt import BPTT
from snnlearn.rules.decolle import DECOLLE
from snnlearn.rules.dfa import DFA
from snnlearn.rules.drtrl import DRTRL
from snnlearn.rules.ell import ELL
from snnlearn.rules.etlp import ETLP
from snnlearn.rules.feedback_alignment import FeedbackAlignment
from snnlearn.rules.fptt import FPTT
from snnlearn.rules.hlop import HLOP
from snnlearn.rules.opzo import OPZO
from snnlearn.rules.osttp import OSTTP
from snnlearn.rules.ottt import OTTT
from snnlearn.rules.report import AttachReport, ReportRow
from snnlearn.rules.reward_modulated import RewardModulated
from snnlearn.rules.sltt import SLTT
from snnlearn.rules.stdp import STDP, RewardSTDP
from snnlearn.rules.tbptt import TruncatedBPTT
from snnlearn.rules.tess import TESS

RULES: dict[str, Callable[..., LearningRule]] = {
    "sltt": SLTT,
    "ottt": OTTT,
    "drtrl": DRTRL,
    "decolle": DECOLLE,
    "dfa": DFA,
    "ell": ELL,
    "etlp": ETLP,
    "feedback_alignment": FeedbackAlignment,
    "opzo": OPZO,
    "osttp": OSTTP,
    "tess": TESS,
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
    "ETLP",
    "FPTT",
    "HLOP",
    "OPZO",
    "OSTTP",
    "OTTT",
    "RULES",
    "SLTT",
    "STDP",
    "TESS",
    "AttachReport",
    "FeedbackAlignment",
    "LearningRule",
    "LocalHead",
    "NoiseEstimate",
    "RateTarget",
    "ReportRow",
    "RewardModulated",
    "RewardSTDP",
    "RuleChoiceError",
    "TruncatedBPTT",
    "attach",
]
