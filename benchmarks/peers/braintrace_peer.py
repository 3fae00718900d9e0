"""braintrace (JAX on the CPU): D-RTRL, step by step and by its own windows, and pp_prop.

    python benchmarks/peers/braintrace_peer.py [--work a c] [--threads 1] [--timed-steps N] > peers.jsonl

A run is one sequence and one Adam update, compiled as one. The gradients of D-RTRL are asserted to be those of the
hand-written loop first; inside a window it differentiates through the readout's time too, so those differ by design.
D-RTRL is timed on the first few steps alone: on (a) each takes long.
"""

import json
import math
import sys

from measuring import (
    ROUNDING,
    batch_of,
    hand_written,
    missing,
    options_for,
    relative_errors,
    report,
    size_of,
    weights_of,
)

OPTIONS = options_for(__doc__, ["a", "c"])
if missing("braintrace", "torch", "jax", "braintrace"):
    sys.exit(1)

import brainstate  # noqa: E402
import braintools  # noqa: E402
import braintrace  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import torch  # noqa: E402

DECAYS = {"a": (0.5,), "c": (0.875, 0.875)}
TIMED_STEPS = {"a": 4, "c": 32}
CHECKED = (8, 4)
WINDOW = 32
# pp_prop smooths where OTTT sums, so it takes the decay alone, not the gradient.
RULES = {
    "D-RTRL": ("d_rtrl", {}),
    f"D-RTRL, windows of {WINDOW}": ("d_rtrl", {"vjp_method": "multi-step"}),
    "pp_prop": ("pp_prop", {"decay_or_rank": 0.875}),
}


@jax.custom_jvp
def spike(u):
    """Return spikes, with the arctan surrogate of alpha 2 as derivative."""
    return (u >= 0).astype(u.dtype)


@spike.defjvp
def _spike_jvp(primals, tangents):
    (u,), (du,) = primals, tangents
    return spike(u), du / (1 + (math.pi * u) ** 2)


class Layer(brainstate.nn.Module):
    """v = decay * (v - s) + W (x, s) + b; gives its spikes, or v where it does not fire."""

    def __init__(self, weight, bias, decay, recurrent=False, fires=True):
        super().__init__()
        self.weight = brainstate.ParamState({"weight": jnp.asarray(weight.T), "bias": jnp.asarray(bias)})
        self.decay, self.recurrent, self.fires = decay, recurrent, fires

    def init_state(self, batch_size=None, **_):
        self.v = brainstate.HiddenState(jnp.zeros((batch_size, len(self.weight.value["bias"]))))

    def update(self, x):
        before = self.v.value
        if self.fires:
            fired = jax.lax.stop_gradient(spike(before - 1))
            before = before - fired
            x = jnp.concatenate([x, fired], -1) if self.recurrent else x
        held = self.weight.value
        self.v.value = self.decay * before + braintrace.matmul(x, held["weight"], held["bias"])
        return spike(self.v.value - 1) if self.fires else self.v.value


class Static(brainstate.nn.Module):
    """A readout without dynamics."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight = brainstate.ParamState({"weight": jnp.asarray(weight.T), "bias": jnp.asarray(bias)})

    def update(self, x):
        return braintrace.matmul(x, self.weight.value["weight"], self.weight.value["bias"])


class Network(brainstate.nn.Module):
    """The network of work (a) or (c)."""

    def __init__(self, work):
        super().__init__()
        held = [weight.numpy() for weight in weights_of(work)]
        if work == "a":
            self.hidden, self.readout = Layer(held[0], held[1], *DECAYS[work]), Static(held[2], held[3])
        else:
            inputs_and_spikes = torch.cat(weights_of(work)[:2], dim=1).numpy()
            self.hidden = Layer(inputs_and_spikes, held[2], DECAYS[work][0], recurrent=True)
            self.readout = Layer(held[3], held[4], DECAYS[work][1], fires=False)

    def update(self, x):
        return self.readout(self.hidden(x))


def training_step(work, rule, x, labels):
    """Return `train(learn)`, jitted: a sequence and an update, returning the gradients."""
    network, batch = Network(work), x.shape[1]
    algorithm, options = RULES[rule]
    learner = braintrace.compile(network, algorithm, x[0], batch_size=batch, **options)
    optimizer = braintools.optim.Adam(1e-3)
    optimizer.register_trainable_weights(learner.param_states)
    windowed = "windows" in rule

    def loss(x):
        output = learner(braintrace.MultiStepData(x) if windowed else x)
        log_p = jax.nn.log_softmax(output)
        return -jnp.take_along_axis(log_p, jnp.broadcast_to(labels[:, None], (*log_p.shape[:-1], 1)), -1).mean((-1, -2))

    @brainstate.transform.jit
    def train(x):
        brainstate.nn.init_all_states(network, batch_size=batch)
        learner.reset_state(batch)
        grads = learner.etrace_grad(x, step_fn=loss, chunk_size=min(WINDOW, len(x)) if windowed else None)
        optimizer.update(grads)
        return grads

    return lambda: jax.block_until_ready(train(x))


def check(work, rule):
    """Assert that D-RTRL has the gradients of the hand-written loop, on a small batch."""
    x, labels = batch_of(work, *CHECKED)
    grads = training_step(work, rule, jnp.asarray(x.numpy()), jnp.asarray(labels.numpy()))()
    by_name = {path: jax.device_get(grad) for path, grad in grads.items()}
    layer = {path[0]: grad for path, grad in by_name.items()}
    found = [torch.tensor(layer[name][kind].T) for name in ("hidden", "readout") for kind in ("weight", "bias")]
    right = hand_written(work, x, labels)
    if work == "c":
        found[0][:, 700:].fill_diagonal_(0)
        right = [torch.cat(right[:2], dim=1), *right[2:]]
    errors = relative_errors(found, right)
    print(json.dumps({"peer": f"braintrace {rule}", "work": work, "check": errors}), file=sys.stderr)
    # A readout without a hidden state behind it got no gradient from version 0.2.6; the layer with traces is compared.
    compared = errors if work == "c" else errors[:2]
    assert max(compared) < ROUNDING, f"braintrace {rule} on ({work}) is not the gradient of the hand loop: {errors}"


def main() -> None:
    """Check and time."""
    for work in OPTIONS.work:
        steps, batch = size_of(work, OPTIONS)
        x, labels = batch_of(work, steps, batch)
        x, labels = jnp.asarray(x.numpy()), jnp.asarray(labels.numpy())
        for rule in RULES:
            name = f"braintrace {rule}"
            if OPTIONS.rules and not any(part in name for part in OPTIONS.rules):
                continue
            if rule == "D-RTRL":
                check(work, rule)
            timed = min(steps, TIMED_STEPS[work]) if rule == "D-RTRL" else steps - steps % WINDOW or steps
            report(name, work, steps, batch, OPTIONS, training_step(work, rule, x[:timed], labels), timed)


if __name__ == "__main__":
    main()
