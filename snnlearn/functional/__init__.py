"""Pure functions, tensors in and tensors out: the one home of every equation, and its reference."""

from snnlearn.functional.affine import et_affine
from snnlearn.functional.alif import alif_jacobian, alif_step
from snnlearn.functional.attention import spike_attention
from snnlearn.functional.cuba_lif import cuba_lif_jacobian, cuba_lif_leak_transition, cuba_lif_step
from snnlearn.functional.cut_step import cut_step
from snnlearn.functional.dynamics import (
    RESETS,
    Decay,
    Jacobian,
    LeakTransition,
    State,
    charge,
    check_reset,
    forward_derivative,
    jacobian_of,
    reset_membrane,
    reset_partials,
)
from snnlearn.functional.eligibility import (
    ConvEligibility,
    FixedTrace,
    LinearEligibility,
    TraceSource,
    bias_gradient,
    et_linear,
)
from snnlearn.functional.leaky_integrator import leaky_integrator_jacobian, leaky_integrator_step
from snnlearn.functional.lif import lif_jacobian, lif_leak_transition, lif_step
from snnlearn.functional.lookup import Lookup, et_embedding
from snnlearn.functional.losses import advance_running_mean, one_hot_mean_squared_error, step_loss
from snnlearn.functional.surrogates import (
    SURROGATES,
    ArcTan,
    Constant,
    FastSigmoid,
    Gaussian,
    MultiGaussian,
    Rectangle,
    Sigmoid,
    Smooth,
    Spike,
    Surrogate,
    Triangle,
    gaussian_cumulative,
    gaussian_density,
)
from snnlearn.functional.trace import (
    FLUSH_BELOW,
    Flush,
    advance_leak_trace_,
    decay_trace,
    flush_subnormals,
    flush_subnormals_,
    flush_threshold,
    read_leak_trace,
)
from snnlearn.functional.weight_standardization import standardize_weight
from snnlearn.functional.weighted_map import Convolution, Dense, WeightedMap

__all__ = [
    "FLUSH_BELOW",
    "RESETS",
    "SURROGATES",
    "ArcTan",
    "Constant",
    "ConvEligibility",
    "Convolution",
    "Decay",
    "Dense",
    "FastSigmoid",
    "FixedTrace",
    "Flush",
    "Gaussian",
    "Jacobian",
    "LeakTransition",
    "LinearEligibility",
    "Lookup",
    "MultiGaussian",
    "Rectangle",
    "Sigmoid",
    "Smooth",
    "Spike",
    "State",
    "Surrogate",
    "TraceSource",
    "Triangle",
    "WeightedMap",
    "advance_leak_trace_",
    "advance_running_mean",
    "alif_jacobian",
    "alif_step",
    "bias_gradient",
    "charge",
    "check_reset",
    "cuba_lif_jacobian",
    "cuba_lif_leak_transition",
    "cuba_lif_step",
    "cut_step",
    "decay_trace",
    "et_affine",
    "et_embedding",
    "et_linear",
    "flush_subnormals",
    "flush_subnormals_",
    "flush_threshold",
    "forward_derivative",
    "gaussian_cumulative",
    "gaussian_density",
    "jacobian_of",
    "leaky_integrator_jacobian",
    "leaky_integrator_step",
    "lif_jacobian",
    "lif_leak_transition",
    "lif_step",
    "one_hot_mean_squared_error",
    "read_leak_trace",
    "reset_membrane",
    "reset_partials",
    "spike_attention",
    "standardize_weight",
    "step_loss",
]
