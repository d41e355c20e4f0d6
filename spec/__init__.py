"""The speculation room: proposers, drafts and trees, draft heads, verifiers and draft control.

Imports kernels only. `draft.py` and `proposer.py` are what everything else speaks. A proposer without weights is a
function of tokens (`text_proposer.py`), one with weights has KV of its own (`target.py`, `head_proposer.py`).
`verify.py` decides what is kept, `control.py` what is worth drafting.
"""
