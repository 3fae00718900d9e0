"""Fast twins of functions in `snnlearn.functional`, and nothing else.

None is built yet: every function runs as its reference. A kernel added here has the signature of its
twin, is reached through a dispatcher that logs which of the two ran and why, and can be deleted again.
"""
