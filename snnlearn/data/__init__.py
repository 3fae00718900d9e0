"""Event recordings as frames: N-MNIST from your files, simulated digits, or any structured events."""

from snnlearn.data.augmentation import random_shift
from snnlearn.data.binning import Binning, binary_loss
from snnlearn.data.camera import Camera
from snnlearn.data.dataset import EventDataset
from snnlearn.data.digits import Digits
from snnlearn.data.errors import DataError
from snnlearn.data.loading import collate, stratified_split
from snnlearn.data.nmnist import NMNIST
from snnlearn.data.samples import EventSample, Sensor
from snnlearn.data.structured import from_structured

__all__ = [
    "NMNIST",
    "Binning",
    "Camera",
    "DataError",
    "Digits",
    "EventDataset",
    "EventSample",
    "Sensor",
    "binary_loss",
    "collate",
    "from_structured",
    "random_shift",
    "stratified_split",
]
