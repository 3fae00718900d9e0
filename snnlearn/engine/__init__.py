"""The engine: the four phases of a step, learning on sequences and streams, and the oracle."""

from snnlearn.engine.learner import OnlineLearner
from snnlearn.engine.losses import CRITERIA, READOUTS, SequenceLoss, StepLoss
from snnlearn.engine.oracle import bptt_gradients
from snnlearn.engine.real_time import rtrl_gradients, snap_gradients, uoro_gradients
from snnlearn.engine.recorder import PhaseEvent, record_phases
from snnlearn.engine.sequence import NonFiniteError, Prediction, SequenceResult
from snnlearn.nn.phases import Phase

__all__ = [
    "CRITERIA",
    "READOUTS",
    "NonFiniteError",
    "OnlineLearner",
    "Phase",
    "PhaseEvent",
    "Prediction",
    "SequenceLoss",
    "SequenceResult",
    "StepLoss",
    "bptt_gradients",
    "record_phases",
    "rtrl_gradients",
    "snap_gradients",
    "uoro_gradients",
]
