"""Made-up tasks that need memory, seeded and offline, each with a known chance level."""

from snnlearn.data.tasks.copying import Copy, CopyOptions
from snnlearn.data.tasks.delayed_xor import DelayedXor, DelayedXorOptions
from snnlearn.data.tasks.evidence_accumulation import EvidenceAccumulation, EvidenceAccumulationOptions
from snnlearn.data.tasks.options import TaskOptions
from snnlearn.data.tasks.pattern_generation import PatternGeneration, PatternGenerationOptions
from snnlearn.data.tasks.store_recall import StoreRecall, StoreRecallOptions

__all__ = [
    "Copy",
    "CopyOptions",
    "DelayedXor",
    "DelayedXorOptions",
    "EvidenceAccumulation",
    "EvidenceAccumulationOptions",
    "PatternGeneration",
    "PatternGenerationOptions",
    "StoreRecall",
    "StoreRecallOptions",
    "TaskOptions",
]
