"""The engine: the four phases of a step, learning on sequences and streams, and the oracle."""

from snnlearn.engine.capture import CaptureError, CudaCapture, TapeCapture
from snnlearn.engine.fidelity import fidelity
from snnlearn.engine.fidelity_report import BrokenClaimError, FidelityReport, FidelityRow
from snnlearn.engine.graphed import GraphedLearner
from snnlearn.engine.kept_memory import kept_bytes
from snnlearn.engine.learner import OnlineLearner
from snnlearn.engine.losses import CRITERIA, READOUTS, SequenceLoss, StepLoss
from snnlearn.engine.oracle import bptt_gradients
from snnlearn.engine.own_loop import in_chunk
from snnlearn.engine.real_time import rtrl_gradients, snap_gradients, uoro_gradients
from snnlearn.engine.recorder import PhaseEvent, record_phases
from snnlearn.engine.sequence import NonFiniteError, Prediction, SequenceResult
from snnlearn.engine.surrogate_bias import surrogate_bias
from snnlearn.engine.surrogate_report import BiasRow, SurrogateBiasReport
from snnlearn.nn.phases import Phase

__all__ = [
    "CRITERIA",
    "READOUTS",
    "BiasRow",
    "BrokenClaimError",
    "CaptureError",
    "CudaCapture",
    "FidelityReport",
    "FidelityRow",
    "GraphedLearner",
    "NonFiniteError",
    "OnlineLearner",
    "Phase",
    "PhaseEvent",
    "Prediction",
    "SequenceLoss",
    "SequenceResult",
    "StepLoss",
    "SurrogateBiasReport",
    "TapeCapture",
    "bptt_gradients",
    "fidelity",
    "in_chunk",
    "kept_bytes",
    "record_phases",
    "rtrl_gradients",
    "snap_gradients",
    "surrogate_bias",
    "uoro_gradients",
]
