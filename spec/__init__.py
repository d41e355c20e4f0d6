"""The speculation room: proposers, draft trees, verifiers, draft control and head training.

Imports kernels only. Empty so far: the engine decodes without drafts (K = 0) until this room is furnished.
"""
