"""From configuration to objects: every knob arrives where it belongs, and nothing of OmegaConf does."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import composed
from torch import nn

from snnlearn import (
    ALIF,
    FPTT,
    IF,
    LI,
    LIF,
    RULES,
    STLLR,
    CubaLIF,
    EProp,
    ETBlock,
    Readout,
    TimeConstantDropout,
    WeightStandardizedETConv2d,
)
from snnlearn.config import Config, ConfigError, load, validate
from snnlearn.config.build import (
    build_dataset,
    build_learner,
    build_network,
    build_rule,
    build_scheduler,
    build_splits,
    build_test,
    build_trainer,
)
from snnlearn.nn.constant import learnable_constants
from snnlearn.nn.networks import convolutional, mlp

Small = Callable[..., Config]


def network(*words: str) -> nn.Sequential:
    return build_network(load(composed(*words)))


def test_default_network_has_its_sizes() -> None:
    net = network()
    shapes = {name: tuple(value.shape) for name, value in net.named_parameters() if name.endswith("weight")}
    assert shapes == {"hidden_1.connection.weight": (512, 2312), "readout.connection.weight": (10, 512)}
    assert isinstance(net.readout.neuron, LI)
    assert net(torch.zeros(3, 2, 34, 34)).shape == (3, 10)


@pytest.mark.parametrize(("name", "kind"), [("if", IF), ("lif", LIF), ("cuba_lif", CubaLIF), ("alif", ALIF)])
def test_neuron_knobs_arrive(name: str, kind: type) -> None:
    net = network(f"neuron={name}", "neuron.threshold=1.5", "neuron.reset=hard", "model.hidden=[4,3]")
    for block in (net.hidden_1, net.hidden_2):
        assert type(block.neuron) is kind
        assert block.neuron.threshold == 1.5
        assert block.neuron.reset_kind == "hard"
    assert net.hidden_1.neuron is not net.hidden_2.neuron


@pytest.mark.parametrize("name", ["if", "lif", "cuba_lif", "alif"])
def test_learned_constants_arrive(name: str) -> None:
    """Every name that the schema allows is one that the neuron knows, and the other way round."""
    assert list(network(f"neuron={name}", "model.hidden=4").hidden_1.neuron.parameters()) == []
    known = list(learnable_constants(type(network(f"neuron={name}", "model.hidden=4").hidden_1.neuron)))
    neuron = network(f"neuron={name}", f"neuron.learn=[{','.join(known)}]", "model.hidden=4").hidden_1.neuron
    assert sorted(neuron.learned.values()) == sorted(known)
    assert all(parameter.shape == () for parameter in neuron.parameters())
    told = str(validate(composed(f"neuron={name}", "neuron.learn=[x]"))[0])
    assert all(constant in told for constant in known)


def test_time_constants_arrive() -> None:
    assert network("neuron.tau=4", "model.hidden=4").hidden_1.neuron.decay == 0.75
    seconds = network("neuron.tau=0.02", "neuron.dt=0.001", "model.hidden=4").hidden_1.neuron
    assert seconds.decay == pytest.approx(0.951229, abs=1e-6)
    assert network("model.readout_tau=4").readout.neuron.decay == 0.75


@pytest.mark.parametrize(
    "word",
    ["arctan", "sigmoid", "triangle", "rectangle", "fast_sigmoid", "gaussian", "multi_gaussian"],
)
def test_surrogates_arrive(word: str) -> None:
    neuron = network(f"surrogate={word}", "model.hidden=4").hidden_1.neuron
    assert type(neuron.surrogate).__name__.lower() == word.replace("_", "")


def test_kernel_size_is_a_tuple_and_nothing_is_of_omegaconf() -> None:
    """H07."""
    config = load(composed("model=convolutional", "model.kernel_size=[3,5]", "model.channels=[4,4]"))
    net = build_network(config)
    connection = net.convolution_1.connection
    assert type(connection.kernel_size) is tuple
    assert connection.kernel_size == (3, 5)
    assert net(torch.zeros(1, 2, 34, 34)).shape == (1, 10)
    learner = build_learner(config, net)
    buffer = io.BytesIO()
    torch.save([net, learner.optimizer.param_groups, build_scheduler(config, learner.optimizer)], buffer)
    assert b"omegaconf" not in buffer.getvalue()
    assert type(learner.optimizer.param_groups[0]["betas"]) is tuple


def test_the_rest_of_the_model_arrives() -> None:
    net = network("model=convolutional", "model.weight_standardized=true", "model.dropout=0.1", "model.readout=static")
    assert isinstance(net.convolution_1.connection, WeightStandardizedETConv2d)
    assert isinstance(net.dropout_1, TimeConstantDropout)
    assert isinstance(net.readout, Readout)
    assert isinstance(net.pool_1, nn.AvgPool2d)
    assert not hasattr(network("model=convolutional", "model.pool=1", "model.channels=2"), "pool_1")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["optimizer=adam"], torch.optim.Adam),
        (["optimizer=adamw"], torch.optim.AdamW),
        (["optimizer=sgd", "optimizer.nesterov=true"], torch.optim.SGD),
    ],
)
def test_optimizers_and_schedules(words: list[str], kind: type) -> None:
    config = load(composed("model.hidden=4", "optimizer.lr=0.25", "optimizer.clip_norm=2", *words))
    learner = build_learner(config, build_network(config))
    assert type(learner.optimizer) is kind
    assert learner.optimizer.param_groups[0]["lr"] == 0.25
    assert learner.clip_norm == 2
    assert build_scheduler(config, learner.optimizer) is None


def test_fptt_wraps_the_optimizer() -> None:
    config = load(composed("model.hidden=4", "optimizer.fptt_alpha=0.4", "optimizer.fptt_beta=1", "trainer.update=1"))
    learner = build_learner(config, build_network(config))
    assert isinstance(learner.optimizer, FPTT)
    assert type(learner.optimizer.optimizer) is torch.optim.Adam
    assert (learner.optimizer.alpha, learner.optimizer.beta, learner.update) == (0.4, 1.0, 1)


def rates(*words: str) -> list[float]:
    config = load(composed("model.hidden=4", "optimizer.lr=1", "trainer.epochs=4", *words))
    optimizer = build_learner(config, build_network(config)).optimizer
    scheduler = build_scheduler(config, optimizer)
    assert scheduler is not None
    found = []
    for _ in range(4):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_learning_rates_over_the_epochs() -> None:
    assert rates("scheduler=step", "scheduler.every=2", "scheduler.factor=0.1") == pytest.approx([1, 1, 0.1, 0.1])
    assert rates("scheduler=cosine") == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)


@pytest.mark.parametrize(
    ("word", "rule"),
    [
        ("rule=sltt", "SLTT"),
        ("rule=ottt", "OTTT"),
        ("rule=drtrl", "D-RTRL"),
        ("rule=s_tllr", "S-TLLR"),
        ("rule=ndot", "NDOT"),
        ("rule=eprop", "e-prop"),
        ("rule=superspike", "SuperSpike"),
        ("rule=tbptt", "TBPTT"),
        ("rule=bptt", "BPTT"),
    ],
)
def test_rules_arrive(word: str, rule: str) -> None:
    config = load(composed("model.hidden=4", word))
    assert build_learner(config, build_network(config)).rule.name == rule


def test_the_knobs_of_a_rule_arrive() -> None:
    words = ["rule=s_tllr", "rule.pre_decay=null", "rule.post_decay=0.4", "rule.acausal=0.5", "rule.last_steps=3"]
    rule = build_rule(load(composed(*words)))
    assert rule == STLLR(None, 0.4, acausal=0.5, last_steps=3)
    words = ["rule=eprop", "rule.broadcast=random", "rule.rate=0.1", "rule.rate_weight=2", "rule.kappa=0.3"]
    assert build_rule(load(composed(*words, "rule.seed=7"))) == EProp("random", 0.1, 2.0, 0.3, 7)
    assert build_rule(load(composed("rule=sltt_k", "rule.steps=5"))).learn_steps == 5


def test_the_files_have_the_defaults_of_the_rules() -> None:
    for name, rule in RULES.items():
        assert build_rule(load(composed(f"rule={name}"))) == rule(), name


def test_the_window_arrives() -> None:
    config = load(composed("model.hidden=4", "rule=tbptt", "rule.window=7"))
    assert build_learner(config, build_network(config)).rule.window == 7


@pytest.mark.parametrize("name", ["cross_entropy", "mse", "mix"])
def test_losses_arrive(name: str) -> None:
    config = load(composed("model.hidden=4", f"loss={name}", "loss.last_steps=3", "loss.readout=running_mean"))
    loss: Any = build_learner(config, build_network(config)).loss
    assert (loss.criterion, loss.last_steps, loss.readout) == (name, 3, "running_mean")


def test_validation_comes_out_of_the_training_data(small: Small) -> None:
    """D12: disjoint, stratified, the same again, other with another seed; the test files are never touched."""
    config = small()
    dataset = build_dataset(config.dataset, "train")
    train, validation = build_splits(config, dataset.labels)
    assert not set(train) & set(validation)
    assert sorted(train + validation) == list(range(30))
    assert sorted(dataset.labels[validation]) == list(range(10))
    assert build_splits(config, dataset.labels) == (train, validation)
    assert build_splits(small("seed=2"), dataset.labels) != (train, validation)
    test = build_test(config)
    assert len(test.indices) == 20
    files = {str(path) for path in dataset.files}  # type: ignore[attr-defined]
    assert not files & {str(path) for path in test.dataset.files}  # type: ignore[union-attr]


def test_limit_is_even_over_the_classes(small: Small) -> None:
    config = small("dataset.limit=20", "dataset.validation=0")
    dataset = build_dataset(config.dataset, "train")
    train, validation = build_splits(config, dataset.labels)
    assert validation == []
    assert sorted(dataset.labels[train]) == sorted([*range(10), *range(10)])


def test_too_small_a_validation_share_is_told(small: Small) -> None:
    with pytest.raises(ConfigError, match=r"dataset.validation: got 0.001; legal: a share of 30 recordings"):
        build_splits(small("dataset.validation=0.001"), build_dataset(small().dataset, "train").labels)


def test_steps_change_the_frames(small: Small, tmp_path: Path) -> None:
    """D18: nothing remembers the frames of other options."""
    for steps in (4, 8):
        trainer = build_trainer(small(f"dataset.steps={steps}"), tmp_path)
        frames, _ = next(iter(trainer.train.epoch(1)))
        assert frames.shape == (steps, 8, 2, 34, 34)
    seen, _ = next(iter(build_trainer(small("dataset.by=duration", "dataset.steps=null"), tmp_path).train.epoch(1)))
    assert seen.shape[0] == 30


def test_the_seed_decides_the_weights(small: Small, tmp_path: Path) -> None:
    def weights(seed: int) -> torch.Tensor:
        return build_trainer(small(f"seed={seed}"), tmp_path).learner.net.hidden_1.connection.weight  # type: ignore

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_networks_refuse_impossible_sizes() -> None:
    with pytest.raises(ValueError, match=r"hidden: got \[0\]"):
        mlp(4, [0], 2, LIF)
    with pytest.raises(ValueError, match="odd numbers"):
        convolutional((2, 8, 8), [4], 2, LIF, kernel_size=(2, 3))
    with pytest.raises(ValueError, match="leave no pixel"):
        convolutional((2, 8, 8), [4, 4, 4, 4], 2, LIF)


def test_convolutions_work_on_a_sensor_that_is_not_square() -> None:
    net = convolutional((2, 34, 20), [4, 4], 3, LIF, kernel_size=(3, 5))
    assert net(torch.rand(5, 2, 34, 20)).shape == (5, 3)
    assert isinstance(net.readout, ETBlock)
