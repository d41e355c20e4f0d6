"""The proposer of draft heads and draft models: keeps their KV in step with the target, then grows the drafts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from decodex.kernels.attention import RowContexts
from decodex.spec.decoder_layer import Entries
from decodex.spec.draft import Draft
from decodex.spec.growth import Growth
from decodex.spec.head import Head
from decodex.spec.proposer import ProposerView
from decodex.spec.target import StepTensors

__all__ = ["HeadProposer"]

Ints = npt.NDArray[np.int64]


class HeadProposer:
    """A `TensorProposer` around a `Head`. It keeps nothing of a sequence between steps but its KV.

    Entries of committed tokens are (re)written from the target's own hidden states as soon as these exist, those of
    draft nodes at the places behind them are overwritten in the next step: nothing is ever rolled back.
    """

    def __init__(self, name: str, head: Head) -> None:
        self.name = name
        self.taps, self.needs_hidden, self.kv_layers = head.taps, head.needs_hidden, head.kv_layers
        self._head = head
        self._step: StepTensors | None = None

    def begin(self, step: StepTensors) -> None:
        """The tensors that the next `propose` reads."""
        self._step = step

    def forget(self, key: int) -> None:
        """Nothing is kept of a sequence."""

    @torch.inference_mode()
    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """Write the entries of view.rows for all views, then a draft for each view that wants one."""
        step, self._step = self._step, None
        assert step is not None, "propose without begin"
        drafts: list[Draft | None] = [None] * len(views)
        growing = [Growth(index, view) for index, view in enumerate(views) if self._is_drafting(view)]
        written = _Written(views, {growth.view for growth in growing}, self._head)
        if not written.num_rows:
            return drafts
        device = step.block_tables.device
        hidden = self._head.inputs(step, torch.from_numpy(written.rows).to(device))
        tokens = torch.from_numpy(written.token_ids).to(device)
        carried, logits = self._head.forward(tokens, hidden, written.entries(step), step)
        if growing:
            self._grow(growing, views, carried, logits, step)
        for growth in growing:
            drafts[growth.view] = growth.draft(self.name)
        return drafts

    def _is_drafting(self, view: ProposerView) -> bool:
        size = len(view.token_ids)
        is_whole = view.start + len(view.rows) == size - 1
        return is_whole and min(view.max_depth, view.max_nodes) > 0 and size + view.max_depth <= self._head.max_position

    def _grow(
        self,
        growing: list[Growth],
        views: Sequence[ProposerView],
        carried: Tensor | None,
        logits: Tensor,
        step: StepTensors,
    ) -> None:
        """Level by level: choose the children of all rows, write the entries of those that are continued."""
        assert step.chooser is not None, "a step without a chooser drafts nothing"
        places = _DraftPlaces([views[growth.view] for growth in growing], self._head.shift, step)
        depth = 0
        while True:
            rows = [(growth, node) for growth in growing for node in growth.frontier]
            choices = step.chooser.choose(
                logits,
                [growth.view for growth, _ in rows],
                [growth.path(node) for growth, node in rows],
                max(growth.width(depth) for growth, _ in rows),
                self._head.token_map,
            )
            row_of = {(growth.view, node): row for row, (growth, node) in enumerate(rows)}
            next_row = 0
            for growth in growing:
                first_row, next_row = next_row, next_row + len(growth.frontier)
                growth.add(depth, choices, first_row)
            depth += 1
            nodes = [
                (owner, row_of[growth.view, growth.parent(node)], growth.token(node), entry)
                for owner, growth in enumerate(growing)
                for entry, node in enumerate(growth.frontier, growth.num_entries - len(growth.frontier))
            ]
            if not nodes:
                return
            owners, parents, tokens, numbers = np.array(list(zip(*nodes)), np.int64)
            entries = places.entries(owners, numbers, parents, depth)
            if carried is not None:
                carried = carried.index_select(0, torch.from_numpy(parents).to(carried.device))
            carried, logits = self._head.forward(torch.from_numpy(tokens).to(logits.device), carried, entries, step)


class _Written:
    """The entries of committed tokens: view after view, from view.start on."""

    def __init__(self, views: Sequence[ProposerView], drafting: set[int], head: Head) -> None:
        """`drafting`: the views whose last row is wanted; an unshifted head writes one entry more for these."""
        shift = head.shift
        pieces: list[Sequence[int]] = []
        rows: list[Sequence[int]] = []
        starts, counts, slots, last = [], [], [], []
        num_rows = 0
        for index, view in enumerate(views):
            count = max(min(len(view.rows), len(view.token_ids) - 1 - view.start, head.max_position - view.start), 0)
            is_drafting = index in drafting
            rows.append(view.rows[:count])
            if is_drafting and not shift:
                count += 1
            if not count:
                continue
            pieces.append(view.token_ids[view.start + shift : view.start + shift + count])
            starts.append(view.start)
            counts.append(count)
            slots.append(view.slot)
            num_rows += count
            if is_drafting:
                last.append(num_rows - 1)
        self.num_rows = num_rows
        self.rows: Ints = np.fromiter(chain.from_iterable(rows), np.int64)
        self.token_ids: Ints = np.fromiter(chain.from_iterable(pieces), np.int64, num_rows)
        self._last: Ints = np.array(last, np.int64)
        self._slots: Ints = np.repeat(np.array(slots, np.int64), counts)
        offsets = np.cumsum(counts) - counts
        self._positions: Ints = np.arange(num_rows) + np.repeat(np.array(starts, np.int64) - offsets, counts)

    def entries(self, step: StepTensors) -> Entries:
        """Where they go and what they read; only the last rows of drafting views are wanted."""
        device, positions = step.block_tables.device, self._positions
        places = _kv_slots(step, self._slots, positions)
        is_all = len(self._last) == self.num_rows
        wanted = None if is_all else torch.from_numpy(self._last).to(device)
        return Entries(
            positions=torch.from_numpy(positions.astype(np.int32)).to(device),
            slots=torch.from_numpy(places).to(device),
            rows=_contexts(step, self._slots, positions + 1, None),
            num_positions=int(positions.max()) + 1,
            wanted=wanted,
            wanted_rows=None if is_all else _contexts(step, self._slots[self._last], positions[self._last] + 1, None),
        )


class _DraftPlaces:
    """Where the entries of draft nodes go: behind the committed ones, in the order in which nodes are continued."""

    def __init__(self, views: Sequence[ProposerView], shift: int, step: StepTensors) -> None:
        self._step = step
        self._base: Ints = np.array([len(view.token_ids) - shift for view in views], np.int64)  # committed entries
        self._slots: Ints = np.array([view.slot for view in views], np.int64)
        num_nodes: Ints = np.array([view.max_nodes for view in views], np.int64)
        offsets = np.minimum(np.arange(int(num_nodes.max())), num_nodes[:, None] - 1)
        self._kv: Ints = _kv_slots(step, self._slots[:, None], self._base[:, None] + offsets)  # [views, nodes]
        self._ancestors: Ints = np.empty((0, 0), np.int64)  # [R, depth] slots of the last level's root paths

    def entries(self, owners: Ints, numbers: Ints, parents: Ints, depth: int) -> Entries:
        """The entries of R nodes that are `depth` deep: of each its view, its number among the view's, and its parent's
        row among those of the call before."""
        device = self._step.block_tables.device
        own = self._kv[owners, numbers]
        self._ancestors = np.column_stack((self._ancestors[parents], own)) if depth > 1 else own[:, None]
        base = self._base[owners]
        positions = base + (depth - 1)
        return Entries(
            positions=torch.from_numpy(positions.astype(np.int32)).to(device),
            slots=torch.from_numpy(own).to(device),
            rows=_contexts(self._step, self._slots[owners], base, self._ancestors),
            num_positions=int(positions.max()) + 1,
        )


def _kv_slots(step: StepTensors, slots: Ints, places: Ints) -> Ints:
    """The KV slots of places in the block tables' lines `slots`."""
    blocks = step.block_tables.cpu().numpy()[slots, places // step.block_size]
    return blocks.astype(np.int64) * step.block_size + places % step.block_size


def _contexts(step: StepTensors, slots: Ints, ctx_lens: Ints, ancestors: Ints | None) -> RowContexts:
    """Rows that read ctx_lens entries of their block tables, then their ancestors [R, depth]."""
    device, num_rows = step.block_tables.device, slots.shape[0]
    depth = 0 if ancestors is None else ancestors.shape[1]
    flat = np.empty(0, np.int64) if ancestors is None else ancestors.reshape(-1)
    return RowContexts(
        block_tables=step.block_tables,
        row_slot=torch.from_numpy(slots.astype(np.int32)).to(device),
        ctx_lens=torch.from_numpy(ctx_lens.astype(np.int32)).to(device),
        anc_cu=torch.from_numpy(np.arange(num_rows + 1, dtype=np.int32) * np.int32(depth)).to(device),
        anc_slots=torch.from_numpy(flat).to(device),
        block_size=step.block_size,
    )
