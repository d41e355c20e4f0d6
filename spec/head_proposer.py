"""The proposer of draft heads and draft models: keeps their KV in step with the target, then grows the drafts."""

from __future__ import annotations

from collections.abc import Sequence

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
        written = _Written(views, {growth.view for growth in growing}, self._head, step)
        if not written.num_rows:
            return drafts
        hidden = self._head.inputs(step, written.rows)
        carried, logits = self._head.forward(written.token_ids, hidden, written.entries, step)
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
        is_chain = all(growth.is_chain for growth in growing)
        kind = _ChainPlaces if is_chain else _DraftPlaces
        places = kind([views[growth.view] for growth in growing], self._head.shift, step)
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
            owners, parents, tokens, numbers = zip(*nodes)
            entries = places.entries(owners, numbers, parents, depth)
            is_same = is_chain and len(nodes) == len(rows)  # each row goes on: nothing to gather
            if carried is not None and not is_same:
                carried = carried.index_select(0, torch.tensor(parents, device=carried.device))
            carried, logits = self._head.forward(torch.tensor(tokens, device=logits.device), carried, entries, step)


class _Written:
    """The entries of committed tokens: view after view, from view.start on."""

    def __init__(self, views: Sequence[ProposerView], drafting: set[int], head: Head, step: StepTensors) -> None:
        """`drafting`: the views whose last row is wanted; an unshifted head writes one entry more for these."""
        shift, tables = head.shift, step.block_tables.cpu().numpy()
        rows: list[int] = []
        token_ids: list[int] = []
        places: list[int] = []
        positions: list[int] = []
        row_slot: list[int] = []
        last: list[int] = []
        for index, view in enumerate(views):
            count = max(min(len(view.rows), len(view.token_ids) - 1 - view.start, head.max_position - view.start), 0)
            is_drafting = index in drafting
            rows += view.rows[:count]
            if is_drafting and not shift:
                count += 1
            if not count:
                continue
            token_ids += view.token_ids[view.start + shift : view.start + shift + count]
            places += _slots_of(tables[view.slot], view.start, count, step.block_size)
            positions += range(view.start, view.start + count)
            row_slot += [view.slot] * count
            if is_drafting:
                last.append(len(positions) - 1)
        self.num_rows = len(positions)
        if not self.num_rows:
            return
        is_all = len(last) == self.num_rows
        sizes = [len(rows), self.num_rows, self.num_rows, len(last)]
        wide = torch.tensor([*rows, *token_ids, *places, *last], device=step.block_tables.device)
        self.rows, self.token_ids, slots, wanted = torch.split(wide, sizes)  # [R'], [R], [R] and [W] int64
        ctx_lens = [position + 1 for position in positions]
        last_lens, last_slots = [ctx_lens[row] for row in last], [row_slot[row] for row in last]
        narrow = torch.tensor(
            [*positions, *ctx_lens, *row_slot, *last_lens, *last_slots], dtype=torch.int32, device=wide.device
        )
        of_rows, of_last = [self.num_rows] * 3, [len(last)] * 2
        row_positions, row_lens, row_slots, wanted_lens, wanted_slots = torch.split(narrow, of_rows + of_last)
        self.entries = Entries(  # only the last rows of drafting views are wanted
            positions=row_positions,
            slots=slots,
            rows=_contexts(step, row_slots, row_lens),
            num_positions=max(ctx_lens),
            wanted=None if is_all else wanted,
            wanted_rows=None if is_all else _contexts(step, wanted_slots, wanted_lens),
        )


class _DraftPlaces:
    """Where the entries of draft nodes go: behind the committed ones, in the order in which nodes are continued."""

    def __init__(self, views: Sequence[ProposerView], shift: int, step: StepTensors) -> None:
        self._step = step
        self._base: Ints = np.array([len(view.token_ids) - shift for view in views], np.int64)  # committed entries
        self._slots: Ints = np.array([view.slot for view in views], np.int64)
        num_nodes: Ints = np.array([view.max_nodes for view in views], np.int64)
        offsets = np.minimum(np.arange(int(num_nodes.max())), num_nodes[:, None] - 1)
        places = self._base[:, None] + offsets
        blocks = step.block_tables.cpu().numpy()[self._slots[:, None], places // step.block_size].astype(np.int64)
        self._kv: Ints = blocks * step.block_size + places % step.block_size  # [views, nodes]
        self._ancestors: Ints = np.empty((0, 0), np.int64)  # [R, depth] slots of the last level's root paths

    def entries(self, owners: Sequence[int], numbers: Sequence[int], parents: Sequence[int], depth: int) -> Entries:
        """The entries of R nodes that are `depth` deep: of each its view, its number among the view's, and its parent's
        row among those of the call before."""
        device = self._step.block_tables.device
        own = self._kv[list(owners), list(numbers)]
        self._ancestors = np.column_stack((self._ancestors[list(parents)], own)) if depth > 1 else own[:, None]
        base = self._base[list(owners)]
        positions = base + (depth - 1)
        places = np.stack((positions, self._slots[list(owners)], base)).astype(np.int32)
        narrow, slots = torch.from_numpy(places).to(device), torch.from_numpy(own).to(device)
        ancestors = torch.from_numpy(self._ancestors.reshape(-1)).to(device)
        rows = _contexts(self._step, narrow[1], narrow[2], ancestors)
        return Entries(narrow[0], slots, rows, int(positions.max()) + 1)


class _ChainPlaces:
    """The same where all drafts are chains: a node reads all places of its view up to its own, as committed ones."""

    def __init__(self, views: Sequence[ProposerView], shift: int, step: StepTensors) -> None:
        self._step, self._num_views = step, len(views)
        device, tables = step.block_tables.device, step.block_tables.cpu().numpy()
        bases = [len(view.token_ids) - shift for view in views]
        depths = [min(view.max_depth, view.max_nodes) for view in views]
        self._first_free, depth = max(bases) + 1, max(depths)
        self._no_ancestors = _no_ancestors(len(views), device)
        by_view = [
            _slots_of(tables[view.slot], base, own_depth, step.block_size) + [-1] * (depth - own_depth)
            for view, base, own_depth in zip(views, bases, depths, strict=True)
        ]
        positions = [base + level for level in range(depth + 1) for base in bases]
        numbers = torch.tensor([*(view.slot for view in views), *positions], dtype=torch.int32, device=device)
        self._row_slot, *self._positions = numbers.view(depth + 2, len(views)).unbind()  # [B] int32 each
        self._slots = torch.tensor(list(zip(*by_view, strict=True)), device=device).unbind()  # [B] int64 each

    def entries(self, owners: Sequence[int], numbers: Sequence[int], parents: Sequence[int], depth: int) -> Entries:
        """See `_DraftPlaces`."""
        positions, ctx_lens = self._positions[depth - 1], self._positions[depth]
        slots, row_slot = self._slots[depth - 1], self._row_slot
        if len(owners) < self._num_views:
            chosen = torch.tensor(owners, device=slots.device)
            positions, ctx_lens = positions.index_select(0, chosen), ctx_lens.index_select(0, chosen)
            slots, row_slot = slots.index_select(0, chosen), row_slot.index_select(0, chosen)
        anc_cu, anc_slots = self._no_ancestors
        tables, block_size = self._step.block_tables, self._step.block_size
        rows = RowContexts(tables, row_slot, ctx_lens, anc_cu[: len(owners) + 1], anc_slots, block_size)
        return Entries(positions, slots, rows, self._first_free + depth - 1)


def _slots_of(table: npt.NDArray[np.int32], first: int, count: int, block_size: int) -> list[int]:
    """The KV slots of places first, first + 1, ... in one line of the block tables."""
    first_block = first // block_size
    blocks = table[first_block : (first + count - 1) // block_size + 1].tolist()
    offset = first_block * block_size
    return [
        blocks[(place - offset) // block_size] * block_size + place % block_size
        for place in range(first, first + count)
    ]


def _no_ancestors(num_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """anc_cu and anc_slots of rows that read places of their block tables only."""
    return (
        torch.zeros(num_rows + 1, dtype=torch.int32, device=device),
        torch.empty(0, dtype=torch.int64, device=device),
    )


def _contexts(step: StepTensors, row_slot: Tensor, ctx_lens: Tensor, ancestors: Tensor | None = None) -> RowContexts:
    """Rows that read ctx_lens [R] entries of lines row_slot [R] of the block tables, then equal shares of ancestors."""
    device, num_rows = row_slot.device, row_slot.shape[0]
    anc_cu, anc_slots = _no_ancestors(num_rows, device)
    if ancestors is not None:
        anc_cu = torch.arange(num_rows + 1, dtype=torch.int32, device=device) * (ancestors.shape[0] // num_rows)
        anc_slots = ancestors
    return RowContexts(step.block_tables, row_slot, ctx_lens, anc_cu, anc_slots, step.block_size)
