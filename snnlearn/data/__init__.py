"""Event recordings as frames, and sequences that need memory: files of yours, simulations, made-up tasks."""

from snnlearn.data.augmentation import random_shift
from snnlearn.data.binning import Binning, binary_loss
from snnlearn.data.camera import Camera
from snnlearn.data.dataset import EventDataset
from snnlearn.data.digits import Digits
from snnlearn.data.errors import DataError
from snnlearn.data.loading import collate, stratified_split
from snnlearn.data.nmnist import NMNIST
from snnlearn.data.qtdb import QTDB
from snnlearn.data.samples import EventSample, Sensor
from snnlearn.data.sequences import MISSING, SequenceDataset, StepTargets, collate_sequences
from snnlearn.data.sequential_mnist import SequentialMNIST
from snnlearn.data.sparse import BinnedEvents, SparseSequence, collate_sparse
from snnlearn.data.structured import from_structured
from snnlearn.data.tasks import (
    Copy,
    CopyOptions,
    DelayedXor,
    DelayedXorOptions,
    EvidenceAccumulation,
    EvidenceAccumulationOptions,
    PatternGeneration,
    PatternGenerationOptions,
    StoreRecall,
    StoreRecallOptions,
    TaskOptions,
)

__all__ = [
    "MISSING",
    "NMNIST",
    "QTDB",
    "BinnedEvents",
    "Binning",
    "Camera",
    "Copy",
    "CopyOptions",
    "DataError",
    "DelayedXor",
    "DelayedXorOptions",
    "Digits",
    "EventDataset",
    "EventSample",
    "EvidenceAccumulation",
    "EvidenceAccumulationOptions",
    "PatternGeneration",
    "PatternGenerationOptions",
    "Sensor",
    "SequenceDataset",
    "SequentialMNIST",
    "SparseSequence",
    "StepTargets",
    "StoreRecall",
    "StoreRecallOptions",
    "TaskOptions",
    "binary_loss",
    "collate",
    "collate_sequences",
    "collate_sparse",
    "from_structured",
    "random_shift",
    "stratified_split",
]
