"""The speculation room: drafts and trees, proposers, verifiers, draft control and head training.

Imports kernels only. So far: the draft, the proposer protocol and the coupled walk. No proposer is built in yet.
"""
