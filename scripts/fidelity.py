"""Measure learning rules against BPTT.

python scripts/fidelity.py rules=[sltt,ottt,drtrl]               a fresh network on the embedded digits
python scripts/fidelity.py checkpoint=RUN_FOLDER rules=[ottt]    a trained one
python scripts/fidelity.py --help                                every knob of its own
"""

from pathlib import Path

from snnlearn.config.fidelity import run_fidelity

if __name__ == "__main__":
    run_fidelity(configs=Path(__file__).resolve().parents[1] / "configs")
