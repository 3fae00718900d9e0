"""Event recordings as frames: N-MNIST from your files, simulated digits, or any structured events."""

from snnlearn.data.binning import Binning, binary_loss
from snnlearn.data.dataset import EventDataset
from snnlearn.data.errors import DataError
from snnlearn.data.nmnist import NMNIST
from snnlearn.data.samples import EventSample, Sensor

__all__ = ["NMNIST", "Binning", "DataError", "EventDataset", "EventSample", "Sensor", "binary_loss"]
