"""Configuration: every knob typed and checked before anything is built; from command line to run."""

from snnlearn.config.problem import ConfigError, Problem
from snnlearn.config.schema import Config
from snnlearn.config.validate import load, plain, validate

__all__ = ["Config", "ConfigError", "Problem", "load", "plain", "validate"]
