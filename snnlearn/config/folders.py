"""Names of the folders of runs and jobs."""

import hashlib
import re

from omegaconf import OmegaConf

__all__ = ["job_folder", "register_resolvers"]

_LONGEST = 100


def job_folder(overrides: str) -> str:
    """Return a folder name for a job's overrides: the same for the same job, and safe on every file system.

    Unusual characters become `-` and long names are cut; both then end in a short hash of the whole.

    >>> job_folder("rule=ottt,seed=1")
    'rule=ottt,seed=1'
    >>> job_folder("model.hidden=[8,16]")
    'model.hidden=-8,16-_eb48ca'
    >>> job_folder("")
    'default'
    """
    name = re.sub(r"[^\w.,=+-]", "-", overrides)[:_LONGEST]
    if name == overrides:
        return name or "default"
    return f"{name}_{hashlib.sha256(overrides.encode()).hexdigest()[:6]}"


def register_resolvers() -> None:
    """Make `${job_folder:...}` known to the YAML files; safe to call again."""
    OmegaConf.register_new_resolver("job_folder", job_folder, replace=True)
