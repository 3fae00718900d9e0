"""What a gradient is exact of: backpropagation through time with certain edges between timesteps cut."""

FULL = "BPTT"
CUT_ALL = "BPTT with every temporal edge cut"
CUT_LATER = "BPTT with the temporal edges of later blocks cut"
CUT_BEYOND = "BPTT with the temporal edges from the second block above on cut"
CUT_WINDOWS = "BPTT with every temporal edge between windows cut"
RECURRENT_CUT = ", every recurrent spike cut"
"""Added to each of these in a network with recurrent connections."""

NOTHING = "no gradient"
"""The learning signal is no derivative of the loss, so there is nothing to be exact of."""

__all__ = ["CUT_ALL", "CUT_BEYOND", "CUT_LATER", "CUT_WINDOWS", "FULL", "NOTHING", "RECURRENT_CUT"]
