"""Test a checkpoint: `python scripts/evaluate.py checkpoint=outputs/.../checkpoints/best.pt`."""

from snnlearn.config.evaluate import evaluate

if __name__ == "__main__":
    evaluate()
