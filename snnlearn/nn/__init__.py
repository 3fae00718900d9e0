"""Modules: neurons, connections, blocks, and the transient state they carry."""

from snnlearn.nn.alif import ALIF
from snnlearn.nn.attention import SpikingSelfAttention
from snnlearn.nn.block import ETBlock, Readout
from snnlearn.nn.chunk import Chunk
from snnlearn.nn.connection import Connection, ETLinear
from snnlearn.nn.constant import LearnableConstant
from snnlearn.nn.convolution import (
    ConvConnection,
    ETConv1d,
    ETConv2d,
    ETConv3d,
    ETConvTranspose1d,
    ETConvTranspose2d,
    ETConvTranspose3d,
)
from snnlearn.nn.cuba_lif import CubaLIF
from snnlearn.nn.dropout import TimeConstantDropout
from snnlearn.nn.embedding import ETEmbedding
from snnlearn.nn.factored_trace import PostTrace
from snnlearn.nn.leaky_integrator import LI
from snnlearn.nn.lif import IF, LIF, FiringNeuron
from snnlearn.nn.membrane import MembraneNeuron
from snnlearn.nn.neuron import Neuron
from snnlearn.nn.norm_trace import NormTrace
from snnlearn.nn.phases import Phase
from snnlearn.nn.rate import RateRegulariser
from snnlearn.nn.recurrent import ETRecurrent
from snnlearn.nn.signal_hub import SignalError, show_reward, show_target
from snnlearn.nn.state import Stateful, StateShapeError, detach_state, reset, stashed_state, stateful_modules
from snnlearn.nn.trace_buffer import StaleTraceError, TraceBuffer
from snnlearn.nn.weight_standardization import WeightStandardizedETConv2d, WeightStandardizedETLinear

__all__ = [
    "ALIF",
    "IF",
    "LI",
    "LIF",
    "Chunk",
    "Connection",
    "ConvConnection",
    "CubaLIF",
    "ETBlock",
    "ETConv1d",
    "ETConv2d",
    "ETConv3d",
    "ETConvTranspose1d",
    "ETConvTranspose2d",
    "ETConvTranspose3d",
    "ETEmbedding",
    "ETLinear",
    "ETRecurrent",
    "FiringNeuron",
    "LearnableConstant",
    "MembraneNeuron",
    "Neuron",
    "NormTrace",
    "Phase",
    "PostTrace",
    "RateRegulariser",
    "Readout",
    "SignalError",
    "SpikingSelfAttention",
    "StaleTraceError",
    "StateShapeError",
    "Stateful",
    "TimeConstantDropout",
    "TraceBuffer",
    "WeightStandardizedETConv2d",
    "WeightStandardizedETLinear",
    "detach_state",
    "reset",
    "show_reward",
    "show_target",
    "stashed_state",
    "stateful_modules",
]
