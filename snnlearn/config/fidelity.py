"""Measure rules against BPTT on a configured network and its data: the command line of `scripts/fidelity.py`."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from snnlearn.config.build import build_dataset, build_device, build_learner, build_network, build_splits, collate_of
from snnlearn.config.compose import ComposeError, choice_values, compose_values
from snnlearn.config.evaluate import CHANGEABLE, change
from snnlearn.config.knob import IllegalValue, convert, knob, legal
from snnlearn.config.problem import ConfigError, Problem, nearest
from snnlearn.config.resume import run_folder, stored_config
from snnlearn.config.schema import Config
from snnlearn.config.sweep import USER_ERRORS
from snnlearn.config.validate import fields, load
from snnlearn.config.words import inspect
from snnlearn.data import SparseSequence, StepTargets
from snnlearn.engine import FidelityReport, SurrogateBiasReport, fidelity, surrogate_bias
from snnlearn.rules import LearningRule, RuleChoiceError
from snnlearn.training import Batches, find_checkpoint, load_checkpoint
from snnlearn.training.batches import Targets
from snnlearn.training.checkpoint import FOLDER

__all__ = ["FidelityOptions", "measure", "parse_fidelity_words", "run_fidelity"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FidelityOptions:
    """What `scripts/fidelity.py` takes beside the knobs of a run."""

    rules: tuple[str, ...] | None = knob("rules to measure, names of configs/rule; null: the configured one")
    checkpoint: Path | None = knob("a checkpoint or a run's folder to measure; null: fresh weights")  # noqa: RUF009
    sequences: int = knob("sequences of the training data to measure on", at_least=1)
    lengths: tuple[int, ...] | None = knob("numbers of first steps; null: T/4, T/2 and T", unit="steps", at_least=1)
    bias_pairs: int | None = knob("pairs of forward passes to measure the surrogate's bias by; null: none", at_least=1)
    bias_sigma: float = knob("share by which those change each weight", above=0)
    folder: Path | None = knob("where to write; null: the run's folder, else outputs/fidelity/DATE")  # noqa: RUF009


DEFAULTS: dict[str, Any] = {
    **{"rules": None, "checkpoint": None, "sequences": 16, "lengths": None},
    **{"bias_pairs": None, "bias_sigma": 0.05, "folder": None},
}


def _help() -> str:
    lines = [
        "Measure the gradients of learning rules against BPTT, on a network and its data.",
        "",
        "  python scripts/fidelity.py rules=[sltt,ottt,drtrl]                   a fresh network on the digits",
        "  python scripts/fidelity.py dataset=nmnist rule=ottt bias_pairs=256   and is BPTT itself right?",
        "  python scripts/fidelity.py checkpoint=RUN_FOLDER rules=[ottt]        a trained network",
        "",
        f"Knobs of its own; all others are those of train.py, with a checkpoint only {', '.join(CHANGEABLE)}:",
    ]
    for name, kind, declared in fields(FidelityOptions):
        if declared is not None:
            lines.append(f"  {name} = {'null' if DEFAULTS[name] is None else DEFAULTS[name]}")
            lines.append(f"      {declared.help}. Legal: {legal(kind, declared)}.")
    lines += ["", "Writes table.csv and heatmap.png (where matplotlib is installed) and prints the tables."]
    return "\n".join(lines)


def run_fidelity(configs: Path, words: Sequence[str] | None = None) -> None:
    """Run the command line of `scripts/fidelity.py`; `configs` is the folder of YAML files. Ends the process.

    Exit codes: 0 done, 1 a claim of exactness is broken, 2 wrong usage or data.
    """
    words = sys.argv[1:] if words is None else words
    if "--help" in words or "-h" in words:
        print(_help())
        sys.exit(0)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    try:
        options, config, rules = parse_fidelity_words(configs, words)
        report, bias = measure(options, config, rules)
    except (*USER_ERRORS, ComposeError, RuleChoiceError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    folder = _folder(options)
    folder.mkdir(parents=True, exist_ok=True)
    print(report)
    report.to_csv(folder / "table.csv")
    written = ["table.csv"]
    if bias is not None:
        print(f"\n{bias}")
        bias.to_csv(folder / "surrogate_bias.csv")
        written.append("surrogate_bias.csv")
    try:
        report.plot(folder / "heatmap.png")
        written.append("heatmap.png")
    except ImportError as error:
        log.warning("no heatmap.png: %s", error)
    print(f"\n{', '.join(written)} in {folder}")
    sys.exit(1 if report.broken else 0)


def parse_fidelity_words(
    configs: Path, words: Sequence[str]
) -> tuple[FidelityOptions, Config, dict[str, LearningRule]]:
    """Return the script's own options, the configuration that the other words mean, and the rules by their name.

    Raises ConfigError with everything that is wrong, CheckpointError where there is no checkpoint.
    """
    own, others = dict(DEFAULTS), []
    for word in words:
        key, sign, text = word.partition("=")
        if sign and key in DEFAULTS:
            own[key] = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[call-overload, index]
        else:
            others.append(word)
    options = _options(own)
    values = _values(configs, others) if options.checkpoint is None else _stored(options.checkpoint, others)
    values["trainer"] = {**values["trainer"], "update": "sequence"}  # what a gradient is the mean over
    return options, load(values), _rules(configs, values, options.rules)


def _options(own: dict[str, Any]) -> FidelityOptions:
    problems, found = [], {}
    for name, kind, declared in fields(FidelityOptions):
        assert declared is not None
        value = [own[name]] if name == "rules" and isinstance(own[name], str) else own[name]
        try:
            found[name] = convert(value, kind, declared, Path.cwd())
        except IllegalValue:
            problems.append(Problem(name, repr(value), legal(kind, declared)))
    if problems:
        raise ConfigError(problems)
    return FidelityOptions(**found)


def _values(configs: Path, words: Sequence[str]) -> dict[str, Any]:
    command = inspect(configs, words, False)
    problems = [
        Problem(problem.path, problem.got, problem.legal, problem.hint or nearest(problem.path, DEFAULTS))
        for problem in command.problems
    ]
    if problems:
        raise ConfigError(problems)
    return compose_values(configs, command.overrides)


def _stored(checkpoint: Path, words: Sequence[str]) -> dict[str, Any]:
    known = (*DEFAULTS, *CHANGEABLE)
    changes, problems = {}, []
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or key not in CHANGEABLE:
            problems.append(Problem(key, text or "no value", f"one of: {', '.join(known)}", nearest(key, known)))
        else:
            changes[key] = OmegaConf.from_dotlist([f"value={text}"]).value
    if problems:
        raise ConfigError(problems)
    return change(stored_config(_weights(checkpoint)), changes)


def _weights(checkpoint: Path) -> Path:
    best = checkpoint / FOLDER / "best.pt"
    return (best if best.is_file() else find_checkpoint(checkpoint)).resolve()


def _rules(configs: Path, values: dict[str, Any], names: Sequence[str] | None) -> dict[str, LearningRule]:
    """Build each rule as a run with it would, on a network that is dropped again."""
    known = {path.partition("/")[2]: rule for path, rule in choice_values(configs).items() if path.startswith("rule/")}
    problems = [
        Problem("rules", name, f"one of: {', '.join(known)}", nearest(name, known))
        for name in names or ()
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    chosen = {values["rule"]["name"]: values["rule"]} if names is None else {name: known[name] for name in names}
    rules = {}
    for name, rule in chosen.items():
        config = load({**values, "rule": rule})
        rules[name] = build_learner(config, build_network(config)).rule
    return rules


def measure(
    options: FidelityOptions, config: Config, rules: dict[str, LearningRule]
) -> tuple[FidelityReport, SurrogateBiasReport | None]:
    """Return the fidelity report of `rules`, and that of the surrogate's bias where it is asked for.

    Raises CheckpointError, DataError, ConfigError, or RuleChoiceError where the network refuses every rule.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    device = build_device(config)
    net = build_network(config).to(device)
    loss = build_learner(config, net).loss  # which attaches the rule: a checkpoint may hold what the rule brought
    if options.checkpoint is not None:
        net.load_state_dict(load_checkpoint(_weights(options.checkpoint))["model"])
    batch = _batch(config, options.sequences, device)
    per_step_target = isinstance(batch[1], StepTargets)
    _check_sizes(options, net, len(batch[0]))
    report = fidelity(
        net,
        batch,
        list(rules.values()),
        loss,
        per_step_target=per_step_target,
        lengths=options.lengths,
        strict=False,
        chunk=_chunk(config, len(batch[0])),
    )
    return report, _bias(options, net, batch, loss, per_step_target)


def _chunk(config: Config, steps: int) -> int:
    """Return the steps that are run at once, which a convolution under a rule per synapse depends on."""
    chunk, update = config.trainer.chunk, config.trainer.update
    if isinstance(chunk, int):
        return chunk
    return update if isinstance(update, int) else steps


def _check_sizes(options: FidelityOptions, net: nn.Module, steps: int) -> None:
    problems = []
    if any(length > steps for length in options.lengths or ()):
        problems.append(Problem("lengths", str(list(options.lengths or ())), f"at most the sequence's {steps} steps"))
    least = 4 * len(list(net.parameters()))
    if options.bias_pairs is not None and options.bias_pairs < least:
        hint = "each parameter tensor takes a regression of its own"
        problems.append(Problem("bias_pairs", str(options.bias_pairs), f"at least {least}", hint))
    if problems:
        raise ConfigError(problems)


def _bias(
    options: FidelityOptions, net: nn.Module, batch: tuple[Tensor, Targets], loss: Any, per_step_target: bool
) -> SurrogateBiasReport | None:
    if options.bias_pairs is None:
        return None
    return surrogate_bias(
        net, batch, loss, per_step_target=per_step_target, pairs=options.bias_pairs, sigma=options.bias_sigma
    )


def _batch(config: Config, sequences: int, device: torch.device) -> tuple[Tensor, Targets]:
    """Return the first training sequences of the seed's order, and their labels or `StepTargets`."""
    dataset = build_dataset(config.dataset, "train")
    train, _ = build_splits(config, dataset.labels)
    batches = Batches(dataset, train, sequences, collate_of(dataset), seed=config.seed, shuffle=True, max_batches=1)
    x, y = next(iter(batches.epoch(1)))
    frames = x.to_dense() if isinstance(x, SparseSequence) else x
    return frames.to(device), y.to(device)


def _folder(options: FidelityOptions) -> Path:
    if options.folder is not None:
        return options.folder
    if options.checkpoint is not None:
        return run_folder(_weights(options.checkpoint)) / "fidelity"
    return Path.cwd() / "outputs" / "fidelity" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
