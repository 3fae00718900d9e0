"""Train a spiking network online.

python scripts/train.py                              the embedded digits, in a few minutes
python scripts/train.py dataset=nmnist               real N-MNIST recordings from data/nmnist
python scripts/train.py -m rule=ottt,sltt seed=1,2   a sweep
python scripts/train.py --help                       every knob: meaning, range, default
"""

from pathlib import Path

from snnlearn.config.cli import train

if __name__ == "__main__":
    train(configs=Path(__file__).resolve().parents[1] / "configs")
