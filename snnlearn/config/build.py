"""From a checked configuration to the objects of a run; values come from the configuration alone."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from snnlearn.config.problem import ConfigError, Problem
from snnlearn.config.schema import Config, CosineConfig, StepConfig
from snnlearn.config.schema_data import DigitsConfig, NMNISTConfig, Recordings
from snnlearn.config.schema_network import ConvolutionalConfig, NeuronConfig, RecurrentConfig, SurrogateConfig
from snnlearn.config.schema_tasks import DatasetConfig, QTDBConfig, SequentialMNISTConfig, TaskConfig
from snnlearn.config.validate import plain
from snnlearn.data import (
    NMNIST,
    QTDB,
    Binning,
    Copy,
    DelayedXor,
    Digits,
    EventDataset,
    EvidenceAccumulation,
    PatternGeneration,
    SequenceDataset,
    SequentialMNIST,
    StoreRecall,
    collate,
    collate_sequences,
    collate_sparse,
    random_shift,
    stratified_split,
)
from snnlearn.engine import OnlineLearner, SequenceLoss
from snnlearn.functional import SURROGATES, Surrogate
from snnlearn.nn import ALIF, IF, LIF, CubaLIF, Neuron
from snnlearn.nn.networks import convolutional, mlp, recurrent
from snnlearn.rules import FPTT, RULES, LearningRule
from snnlearn.training import Batches, Options, Trainer
from snnlearn.training.batches import Collate

__all__ = [
    "build_dataset",
    "build_device",
    "build_learner",
    "build_network",
    "build_rule",
    "build_test",
    "build_trainer",
]

Split = Literal["train", "test"]

NEURONS: dict[str, Callable[..., Neuron]] = {"if": IF, "lif": LIF, "cuba_lif": CubaLIF, "alif": ALIF}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}

TASKS: dict[str, Callable[..., SequenceDataset]] = {
    "copy": Copy,
    "delayed_xor": DelayedXor,
    "evidence_accumulation": EvidenceAccumulation,
    "pattern_generation": PatternGeneration,
    "store_recall": StoreRecall,
}


def build_device(config: Config) -> torch.device:
    """Return the device that `device` means on this machine."""
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def build_dataset(config: DatasetConfig, split: Split) -> EventDataset | SequenceDataset:
    """Return the recordings or sequences of a split. Raises DataError where they are not at hand."""
    if isinstance(config, TaskConfig):
        return TASKS[config.name](split, config.task)
    if isinstance(config, SequentialMNISTConfig):
        return SequentialMNIST(config.root, split, config.chunk, config.permuted, config.seed)
    if isinstance(config, QTDBConfig):
        return QTDB(config.root, split, config.unlabelled)
    return _build_recordings(config, split)


def _build_recordings(config: DigitsConfig | NMNISTConfig, split: Split) -> EventDataset:
    window_us, bin_us = (config.window_us, None) if config.by == "number" else (None, config.bin_us)
    binning = Binning(config.steps, config.by, window_us, bin_us, config.binary, config.sparse)
    if isinstance(config, DigitsConfig):
        return Digits(split=split, binning=binning, cache_dir=config.cache_dir)
    return NMNIST(config.root, split=split, binning=binning)


def _limited(labels: np.ndarray, limit: int | None, seed: int) -> np.ndarray:
    """Return the indices of at most `limit` recordings, evenly over the classes."""
    if limit is None or limit >= len(labels):
        return np.arange(len(labels))
    return stratified_split(labels, limit / len(labels), seed)[1]


def build_splits(config: Config, labels: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the indices of the training and of the validation recordings, both out of the training data."""
    used = _limited(labels, config.dataset.limit, config.seed)
    if config.dataset.validation == 0:
        return used.tolist(), []
    try:
        train, validation = stratified_split(labels[used], config.dataset.validation, config.seed)
    except ValueError as error:
        share = f"a share of {len(used)} recordings that leaves some for either part, or 0 for no validation"
        raise ConfigError([Problem("dataset.validation", f"{config.dataset.validation:g}", share)]) from error
    return used[train].tolist(), used[validation].tolist()


def build_test(config: Config) -> Batches:
    """Return the batches of the test split, in a fixed order."""
    dataset = build_dataset(config.dataset, "test")
    chosen = _limited(dataset.labels, config.dataset.limit, config.seed).tolist()
    options = config.trainer
    together = collate_of(dataset)
    return Batches(dataset, chosen, options.batch_size, together, seed=config.seed, workers=options.workers)


def collate_of(dataset: EventDataset | SequenceDataset) -> Collate:
    """Return what puts the items of `dataset` together into a batch."""
    if isinstance(dataset, SequenceDataset):
        return collate_sequences
    return collate_sparse if dataset.binning.sparse else collate


def build_surrogate(config: SurrogateConfig) -> Surrogate:
    """Return the surrogate of the spike."""
    return SURROGATES[config.name](**_without_name(config))


def build_neuron(
    config: NeuronConfig, surrogate: SurrogateConfig, adaptive_share: float = 1.0, units: int | None = None
) -> Neuron:
    """Return the neurons of one layer; of its `units`, the first `adaptive_share` adapt (1: all, of any number)."""
    options = _without_name(config)
    if units is not None:
        adapts = torch.arange(units) < round(adaptive_share * units)
        options["adaptation"] = options["adaptation"] * adapts.to(torch.get_default_dtype())
    return NEURONS[config.name](**options, surrogate=build_surrogate(surrogate))


def build_network(config: Config) -> nn.Sequential:
    """Return the network, its weights drawn from torch's global generator."""
    model, shape, outputs = config.model, config.dataset.input_shape, config.dataset.output_count

    options = _without_name(model)
    share = options.pop("adaptive_share", 1.0)
    sizes = iter(options.get("hidden", ()))

    def neuron() -> Neuron:
        if share == 1:
            return build_neuron(config.neuron, config.surrogate)
        return build_neuron(config.neuron, config.surrogate, share, next(sizes))

    if isinstance(model, ConvolutionalConfig):
        polarities, rows, columns = shape
        return convolutional((polarities, rows, columns), options.pop("channels"), outputs, neuron, **options)
    build = recurrent if isinstance(model, RecurrentConfig) else mlp
    return build(int(np.prod(shape)), options.pop("hidden"), outputs, neuron, **options)


def build_learner(config: Config, network: nn.Module) -> OnlineLearner:
    """Return the learner: network, rule, loss and optimizer. Raises ConfigError where they do not go together."""
    optimizer_options = _without_name(config.optimizer)
    clip_norm, alpha, beta = (optimizer_options.pop(name) for name in ("clip_norm", "fptt_alpha", "fptt_beta"))
    optimizer = OPTIMIZERS[config.optimizer.name](network.parameters(), **optimizer_options)
    loss = build_loss(config)
    optimizer = optimizer if alpha is None else FPTT(optimizer, alpha, beta)
    try:
        rule = build_rule(config)
        options = config.trainer
        return OnlineLearner(network, rule, loss, optimizer, options.update, clip_norm, options.chunk)
    except ValueError as error:
        problem = Problem("rule", config.rule.name, "a rule that goes with the rest", str(error))
        raise ConfigError([problem]) from error


def build_rule(config: Config) -> LearningRule:
    """Return the learning rule with its knobs."""
    return RULES[config.rule.name](**_without_name(config.rule))


def build_loss(config: Config) -> SequenceLoss:
    """Return the loss of a sequence; a task with an answer at the end counts the steps of the answer alone."""
    options = _without_name(config.loss)
    if options["last_steps"] is None:
        options["last_steps"] = config.dataset.answer_steps
    return SequenceLoss(criterion=config.loss.name, **options)


def build_scheduler(config: Config, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler | None:
    """Return the schedule of the learning rate, stepped once an epoch; None for a constant one."""
    scheduler = config.scheduler
    if isinstance(scheduler, CosineConfig):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.trainer.epochs, scheduler.minimum_lr)
    if isinstance(scheduler, StepConfig):
        return torch.optim.lr_scheduler.StepLR(optimizer, scheduler.every, scheduler.factor)
    return None


def _shifted(frames: Tensor, generator: torch.Generator, pixels: int) -> Tensor:
    return random_shift(frames, pixels, generator)


def build_trainer(config: Config, folder: Path) -> Trainer:
    """Return a trainer that writes to `folder`; seeds torch's generator first, so the weights are the seed's."""
    options = config.trainer
    dataset = build_dataset(config.dataset, "train")
    train, validation = build_splits(config, dataset.labels)
    device = build_device(config)
    shift = config.dataset.shift if isinstance(config.dataset, Recordings) else 0
    torch.manual_seed(config.seed)
    learner = build_learner(config, build_network(config).to(device))

    def batches(indices: list[int], shuffle: bool) -> Batches:
        return Batches(
            dataset,
            indices,
            options.batch_size,
            collate_of(dataset),
            seed=config.seed,
            shuffle=shuffle,
            workers=options.workers,
            max_batches=options.max_batches,
            vary=partial(_shifted, pixels=shift) if shuffle and shift else None,
        )

    return Trainer(
        learner,
        batches(train, shuffle=True),
        batches(validation, shuffle=False) if validation else None,
        folder,
        Options(
            epochs=options.epochs,
            log_every=config.logger.log_every,
            save_every=options.save_every,
            nonfinite=options.nonfinite,
            precision=options.precision,
            progress=config.logger.progress,
            tensorboard=config.logger.tensorboard,
            fidelity_every=config.logger.fidelity_every,
        ),
        scheduler=build_scheduler(config, learner.optimizer),
        device=device,
        record={"config": plain(config), "classes": list(dataset.classes)},
    )


def _without_name(config: Any) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key != "name"}
