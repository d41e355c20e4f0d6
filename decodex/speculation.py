"""Speculation in the engine: which proposer is asked for which sequence, what is drafted, and what became of it."""

from __future__ import annotations

import dataclasses
import functools
import logging
import operator
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from decodex.batch import StepBatch, StepOutput
from decodex.draft_chooser import DraftChooser
from decodex.grammar.errors import MatcherError
from decodex.kv_cache import KVCache
from decodex.models.interface import ForwardOutput
from decodex.outputs import SpeculationMetrics
from decodex.params import MAX_CHOICES
from decodex.request import Sequence as RequestSequence
from decodex.request import Status
from decodex.scheduler import Plan, Scheduler
from decodex.spec.cascade import Cascade
from decodex.spec.control import Control
from decodex.spec.costs import CostModel, DraftClock, DraftCost
from decodex.spec.draft import ROOT, Draft
from decodex.spec.forced import ForcedProposer
from decodex.spec.ngram import NgramProposer
from decodex.spec.prediction import PredictionProposer
from decodex.spec.proposer import Proposer, ProposerView
from decodex.spec.suffix import SuffixCorpus, SuffixProposer
from decodex.spec.target import StepTensors, TensorProposer
from decodex.speculative_config import CUSTOM, WITH_WEIGHTS, SpeculativeConfig

__all__ = ["Speculation"]

logger = logging.getLogger(__name__)

PATIENCE = 12  # steps without a draft,
REST = 4  # and then every so many steps: a sequence is asked
MANY = 16  # sequences that decode: a method with weights that has not paid
MODEL_PATIENCE = 12  # steps long there leaves them alone, and spares the time of keeping its KV up to date
LOOK_AGAIN = 512  # steps: then new ones are drafted for once more

K = TypeVar("K", bound=Hashable)


@dataclass(eq=False)
class _Asked:
    """A sequence for which proposers are asked in this step."""

    seq: RequestSequence
    config: SpeculativeConfig
    view: ProposerView
    draft: Draft | None = None


class Speculation:
    """Owned by the engine, called after each commit."""

    def __init__(
        self,
        custom: Proposer | None,
        with_weights: TensorProposer | None,
        scheduler: Scheduler,
        chooser: DraftChooser,
        block_tables: Tensor,
        kv: KVCache,
        corpus_mib: float = 0.0,
    ) -> None:
        """`custom` is asked where a request names no methods; `with_weights` has a model, whose layers are the last
        ones of `kv`."""
        self._corpus = SuffixCorpus(int(corpus_mib * 2**20)) if corpus_mib else None
        self._proposers: dict[str, Proposer] = {
            "forced": ForcedProposer(),
            "prediction": PredictionProposer(),
            "suffix": SuffixProposer(self._corpus),
            "ngram": NgramProposer(),
        }
        self._with_weights = with_weights
        self._custom = custom
        self._num_failures = 0  # of the custom proposer
        self._control: Control | None = None
        self._scheduler = scheduler
        self._chooser = chooser
        self._block_tables = block_tables
        self._kv = kv
        self._num_steps = 0
        self._misses: dict[int, int] = {}  # by sequence: steps since there was a draft
        self._costs: dict[str, DraftCost] = {}  # as the control sees them
        self._clock = DraftClock()
        self._proposed: dict[int, Draft] = {}  # by sequence: before control has cut it
        self._cascades: dict[tuple[tuple[str, ...], bool], Proposer] = {}  # by methods and whether control cuts them

    def begin_control(self, costs: CostModel) -> None:
        """From now on what does not pay is neither drafted nor verified, where a config has `control`."""
        self._control = Control(dataclasses.replace(costs, drafts=self._costs))

    def reads(self, batch: StepBatch) -> tuple[tuple[int, ...], bool]:
        """Of which layers the outputs are read after this step, and whether the last hidden states are."""
        proposer = self._with_weights
        if proposer is None or not any(map(_has_model, (entry.seq for entry in batch.entries))):
            return (), False
        return proposer.taps, proposer.needs_hidden

    def propose(self, batch: StepBatch, output: StepOutput, forward: ForwardOutput) -> None:
        """Draft for the sequences that decode next, into their `draft`."""
        self._num_steps += 1
        asked = self._asked(batch, output)
        if not asked:
            return
        if self._control is not None:
            self._control.begin(sum(len(one.view.token_ids) for one in asked) / len(asked))
        for (methods, is_controlled), group in _by(asked, lambda a: (a.config.methods, a.config.control)):
            self._ask(_before(methods), is_controlled, group)
        if self._with_weights is not None:
            num_sequences = len(batch.sampled)
            self._leave_behind(asked, num_sequences)
            for is_coupled, group in _by(asked, lambda a: a.config.verification == "coupled"):
                self._ask_model([a for a in group if _has_model(a.seq)], is_coupled, forward, num_sequences)
        for (methods, is_controlled), group in _by(asked, lambda a: (a.config.methods, a.config.control)):
            self._ask(_after(methods), is_controlled, group)
        self._choose(asked, len(batch.sampled))

    def fit(self, plan: Plan) -> None:
        """Cut drafts once more, now that the rows of prompts are known: a row more may cost a tile of all kernels."""
        sampled = [entry for entry in plan.entries.values() if entry.is_sampled]
        drafted = [e for e in sampled if e.draft is not None and e.seq.request.speculation is not None]
        cuttable = [e for e in drafted if e.seq.request.speculation is not None and e.seq.request.speculation.control]
        num_prompt_rows = sum(entry.num_tokens for entry in plan.entries.values()) - len(sampled)
        if self._control is None or not cuttable or not num_prompt_rows:
            return
        others = num_prompt_rows + sum(e.num_drafts for e in drafted) - sum(e.num_drafts for e in cuttable)
        keys = [_key(entry.seq) for entry in cuttable]
        kept = self._control.cut(keys, [entry.draft for entry in cuttable], len(sampled), others)
        for key, entry, draft in zip(keys, cuttable, kept, strict=True):
            plan.entries[entry.seq] = dataclasses.replace(entry, draft=draft)
            plan.budget += entry.num_drafts - plan.entries[entry.seq].num_drafts
            if draft is not None and draft.laws is not None:
                self._proposed[key] = draft

    def observe(self, batch: StepBatch, output: StepOutput) -> None:
        """What the target made of the drafts."""
        for entry, tokens, accepted in zip(batch.sampled, output.token_ids, output.accepted, strict=True):
            metrics = entry.seq.request.metrics.speculation
            if metrics is None:
                continue
            num_kept = len(entry.seq.token_ids) - (entry.start + entry.num_tokens)  # an end throws the rest away
            _count(metrics, entry.draft, num_kept, accepted[:num_kept])
            if self._control is not None:
                key = _key(entry.seq)
                self._control.observe(key, self._proposed.pop(key, None), tokens)

    def forget(self, seq: RequestSequence) -> None:
        """The sequence is over."""
        if seq.request.speculation is None:
            return
        key = _key(seq)
        if self._corpus is not None and seq.completion.finish_reason in ("stop", "length"):
            self._corpus.add(seq.completion.token_ids)
        for proposer in (*self._proposers.values(), self._with_weights):
            if proposer is not None:
                proposer.forget(key)
        if self._custom is not None:
            try:
                self._custom.forget(key)
            except Exception as error:
                self._note_failure(error)
        self._proposed.pop(key, None)
        self._misses.pop(key, None)
        if self._control is not None:
            self._control.forget(key)

    def _asked(self, batch: StepBatch, output: StepOutput) -> list[_Asked]:
        accepted = {entry.seq: nodes for entry, nodes in zip(batch.sampled, output.accepted, strict=True)}
        asked = []
        for entry, first_row in zip(batch.entries, batch.first_rows, strict=True):
            seq = entry.seq
            config = seq.request.speculation
            if config is None or seq.status is not Status.RUNNING or seq.request.metrics.speculation_off is not None:
                continue
            nodes = accepted.get(seq)
            if _has_model(seq):
                first_draft = first_row + entry.num_tokens
                rows = [*range(first_row, first_draft), *(first_draft + node for node in nodes or ())]
                view = self._view(seq, config, nodes is not None, entry.start, rows)
                asked.append(_Asked(seq, config, view))
            elif nodes is not None and not self._is_resting(seq, config):
                asked.append(_Asked(seq, config, self._view(seq, config, is_decoding=True)))
        return asked

    def _is_resting(self, seq: RequestSequence, config: SpeculativeConfig) -> bool:
        """Whether there was nothing to draft for so long that it is asked now and then only: asking costs time too.

        All such are asked in the same step, so that most steps of a large batch ask nobody. What a grammar forces and
        what was predicted may come at any time, and soon be over.
        """
        if not config.control or seq.constrained is not None or seq.request.prediction:
            return False
        return self._misses.get(_key(seq), 0) >= PATIENCE and self._num_steps % REST != 0

    def _view(
        self,
        seq: RequestSequence,
        config: SpeculativeConfig,
        is_decoding: bool,
        start: int = 0,
        rows: Sequence[int] = (),
    ) -> ProposerView:
        num_tokens = len(seq.token_ids)
        depth = min(config.max_depth, seq.num_remaining - 1) if is_decoding else 0
        nodes = config.max_nodes if depth > 0 else 0
        if nodes and _has_model(seq):  # it writes KV for them
            nodes = min(nodes, self._scheduler.reserve(seq, num_tokens + nodes) - num_tokens)
        return ProposerView(
            key=_key(seq),
            slot=seq.slot,
            start=start,
            rows=rows,
            token_ids=seq.token_ids,
            num_prompt_tokens=seq.num_prompt_tokens,
            max_depth=min(depth, nodes),
            max_nodes=nodes,
            options=config.options,
            prediction=seq.request.prediction,
            forced=None if seq.constrained is None else functools.partial(seq.constrained.forced_draft, seq.token_ids),
        )

    def _ask(self, methods: tuple[str, ...], is_controlled: bool, asked: Sequence[_Asked]) -> None:
        """Ask methods without weights about those that have no draft yet."""
        wanting = [a for a in asked if a.view.max_depth > 0 and a.draft is None]
        if not methods or not wanting:
            return
        is_custom = self._custom is not None and methods == CUSTOM.methods  # others were named by the request
        proposer = self._custom if is_custom else self._cascades.get((methods, is_controlled))
        if proposer is None:
            limits = self._control.depth_limits if is_controlled and self._control is not None else None
            proposer = Cascade([self._proposers[name] for name in methods], limits)
            self._cascades[methods, is_controlled] = proposer
        views = [a.view for a in wanting]
        drafts = self._custom_drafts(views) if is_custom else proposer.propose(views)
        for one, draft in zip(wanting, drafts, strict=True):
            one.draft = draft or None

    def _custom_drafts(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """Of a proposer that is not ours: what it gets wrong costs speed, and no request its answer."""
        assert self._custom is not None
        try:
            # copies: the token lists are the sequences' own
            drafts = self._custom.propose([dataclasses.replace(v, token_ids=tuple(v.token_ids)) for v in views])
            if len(drafts) != len(views):
                raise ValueError(f"{len(drafts)} drafts for {len(views)} views")
            return [None if draft is None else self._checked(draft) for draft in drafts]
        except Exception as error:
            self._note_failure(error)
            return [None] * len(views)

    def _note_failure(self, error: Exception) -> None:
        """The first one with where it came from, the others for those who debug."""
        level, self._num_failures = logging.DEBUG if self._num_failures else logging.ERROR, self._num_failures + 1
        logger.log(level, "the proposer %s failed: no drafts in this step", type(self._custom).__name__, exc_info=error)

    def _checked(self, draft: Draft) -> Draft | None:
        """A draft of ids in the vocabulary, whose nodes say who proposed them."""
        if not isinstance(draft, Draft):
            raise TypeError(f"expected a Draft, got {type(draft).__name__}")
        tokens, parents = tuple(map(operator.index, draft.token_ids)), tuple(map(operator.index, draft.parents))
        if not all(0 <= token < self._chooser.vocab_size for token in tokens):
            raise ValueError(f"token ids: expected 0..{self._chooser.vocab_size - 1}, got {min(tokens)}..{max(tokens)}")
        sources = tuple(map(str, draft.sources)) or (str(getattr(self._custom, "name", "custom")),) * len(tokens)
        return dataclasses.replace(draft, token_ids=tokens, parents=parents, sources=sources)

    def _leave_behind(self, asked: Sequence[_Asked], num_sequences: int) -> None:
        """Where so many decode that the method with weights does not pay, its KV need not be kept up to date either.

        What falls behind stays so: hidden states are not kept. Prompts are still written, for the prefix cache.
        """
        assert self._with_weights is not None
        name = self._with_weights.name
        if self._control is None or num_sequences < MANY or self._num_steps % LOOK_AGAIN < 2 * MODEL_PATIENCE:
            return
        if self._control.num_idle(name) >= MODEL_PATIENCE:
            for one in asked:
                if one.config.control and one.view.max_depth > 0:
                    one.seq.is_behind = True

    def _ask_model(self, asked: Sequence[_Asked], is_coupled: bool, forward: ForwardOutput, num_sequences: int) -> None:
        """Ask the method with weights; it also brings its KV up to date for those that have a draft."""
        if not asked:
            return
        assert self._with_weights is not None
        num_layers = len(self._with_weights.kv_layers)
        self._chooser.begin([a.seq for a in asked], is_coupled)
        self._with_weights.begin(
            StepTensors(
                hidden=forward.hidden,
                taps=forward.taps,
                block_tables=self._block_tables,
                kv_k=self._kv.k[-num_layers:],
                kv_v=self._kv.v[-num_layers:],
                block_size=self._kv.block_size,
                chooser=self._chooser,
            )
        )
        self._costs[self._with_weights.name] = self._clock.cost(len(asked))
        depths = self._model_depths(asked, num_sequences)
        views = [
            a.view if a.view.max_depth == depth else dataclasses.replace(a.view, max_depth=depth)
            for a, depth in zip(asked, depths, strict=True)
        ]
        start = time.perf_counter()
        drafts = self._with_weights.propose(views)
        if max(depths) > 0 or all(a.view.max_depth > 0 for a in asked):  # no prompts alone
            self._clock.note(len(asked), max(depths), time.perf_counter() - start)
        for one, draft in zip(asked, drafts, strict=True):
            if draft and one.draft is not None and self._control is not None:
                self._control.watch(one.view.key, one.draft)
            one.draft = draft or one.draft
        self._chooser.begin(())

    def _model_depths(self, asked: Sequence[_Asked], num_sequences: int) -> list[int]:
        """How deep the method with weights is to draft; 0 where that would not pay, or there is a better draft."""
        depths = [min(a.view.max_depth, a.config.max_model_depth) for a in asked]
        contested = self._contested(asked, depths, num_sequences)
        depths = [0 if a.draft is not None and i not in contested else depths[i] for i, a in enumerate(asked)]
        controlled = [i for i, a in enumerate(asked) if a.config.control and depths[i] > 0]
        if self._control is None or not controlled or self._with_weights is None:
            return depths
        keys = [asked[i].view.key for i in controlled]
        wanted = [depths[i] for i in controlled]
        limits = self._control.depth_limits(self._with_weights.name, keys, wanted, num_sequences)
        for i, limit in zip(controlled, limits, strict=True):
            depths[i] = limit
        return depths

    def _contested(self, asked: Sequence[_Asked], depths: Sequence[int], num_sequences: int) -> set[int]:
        """Of those that have a draft, which are better off with one of the method with weights."""
        if self._control is None or self._with_weights is None:
            return set()
        guessed = [
            (i, one.view.key, one.draft)
            for i, one in enumerate(asked)
            if one.draft is not None and one.config.control and depths[i] > 0 and "forced" not in one.draft.sources
        ]
        if not guessed:
            return set()
        places, keys, drafts = zip(*guessed, strict=True)
        wanted = [depths[i] for i in places]
        preferred = self._control.prefers(self._with_weights.name, keys, drafts, wanted, num_sequences)
        return {i for i, is_preferred in zip(places, preferred, strict=True) if is_preferred}

    def _choose(self, asked: Sequence[_Asked], num_sequences: int) -> None:
        """Leave out what a grammar does not allow and what does not pay."""
        for one in asked:
            if one.draft is not None and one.seq.constrained is not None:
                one.draft = _legal(one.seq, one.draft)
        controlled = [a for a in asked if a.draft is not None and a.config.control]
        if self._control is not None and controlled:
            self._proposed.update({a.view.key: a.draft for a in controlled if a.draft is not None})
            num_others = sum(len(a.draft) for a in asked if a.draft is not None and not a.config.control)
            keys, drafts = [a.view.key for a in controlled], [a.draft for a in controlled]
            selected = self._control.select(keys, drafts, num_sequences, num_others)
            for one, draft in zip(controlled, selected, strict=True):
                one.draft = draft
                if one.config.verification != "coupled" and draft is not None:
                    self._proposed[one.view.key] = draft
        for one in asked:
            one.seq.draft = one.draft
            self._misses[one.view.key] = 0 if one.draft is not None else self._misses.get(one.view.key, 0) + 1


def _has_model(seq: RequestSequence) -> bool:
    """Whether the method with weights is asked, and its KV kept up to date."""
    config = seq.request.speculation
    return config is not None and config.with_weights is not None and not seq.is_behind


def _key(seq: RequestSequence) -> int:
    return seq.request.arrival * MAX_CHOICES + seq.index


def _by(asked: Iterable[_Asked], key: Callable[[_Asked], K]) -> list[tuple[K, list[_Asked]]]:
    groups: dict[K, list[_Asked]] = {}
    for one in asked:
        groups.setdefault(key(one), []).append(one)
    return list(groups.items())


def _before(methods: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are asked before the one with weights."""
    return next((methods[:i] for i, name in enumerate(methods) if name in WITH_WEIGHTS), methods)


def _after(methods: tuple[str, ...]) -> tuple[str, ...]:
    return methods[len(_before(methods)) + 1 :]


def _legal(seq: RequestSequence, draft: Draft) -> Draft | None:
    assert seq.constrained is not None
    try:
        is_legal = seq.constrained.legal(draft.token_ids, draft.parents)
    except MatcherError:
        return None  # its row will say so
    if draft.laws is not None:  # a token that was drawn counts, legal or not: the target's law refuses it by its ratio
        is_legal = [parent == ROOT or is_legal[parent] for parent in draft.parents]
    return draft.kept([node for node in range(len(draft)) if is_legal[node]])


def _count(metrics: SpeculationMetrics, draft: Draft | None, num_tokens: int, accepted: Sequence[int]) -> None:
    metrics.num_steps += 1
    metrics.num_tokens += num_tokens
    if draft is None:
        return
    metrics.num_drafted += len(draft)
    metrics.num_accepted += len(accepted)
    depths = [len(path) for path in draft.paths]
    missing = max(depths) - len(metrics.drafted_at)
    metrics.drafted_at.extend([0] * missing)
    metrics.accepted_at.extend([0] * missing)
    for depth in set(depths):
        metrics.drafted_at[depth - 1] += 1  # siblings are one try
    for node in accepted:
        metrics.accepted_at[depths[node] - 1] += 1
    taken = set(accepted)
    for node, source in enumerate(draft.sources):
        drafted, kept = metrics.by_proposer.get(source, (0, 0))
        metrics.by_proposer[source] = (drafted + 1, kept + (node in taken))
