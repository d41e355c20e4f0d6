"""Engine: one decode step after another over whatever is queued. One thread calls it; it owns all state below."""

from __future__ import annotations

import logging
import time

import torch

from decodex.admission import Admission
from decodex.batch import StepBatch, StepOutput
from decodex.config import EngineConfig, resolve, resolve_device
from decodex.cost_profile import step_costs
from decodex.draft_chooser import DraftChooser
from decodex.errors import DecodexError, EngineError, NoTokenLeftError, QueueFullError, RequestError
from decodex.features.grammar import GrammarMasks
from decodex.features.pipeline import build_features
from decodex.features.vocabulary import Vocabulary
from decodex.fingerprint import system_fingerprint
from decodex.grammar.check import IndependentCheck
from decodex.grammar.errors import MatcherError
from decodex.grammars import Grammars
from decodex.heads import load_drafter
from decodex.kv_cache import KVCache, LayerKV
from decodex.models.interface import CausalLM
from decodex.models.loader import load_model
from decodex.models.source import resolve_model
from decodex.outputs import RequestOutput
from decodex.params import SamplingParams
from decodex.processors import bind
from decodex.request import Request, Sequence, Status
from decodex.runner import ModelRunner
from decodex.sampler import Sampler
from decodex.scheduler import Scheduler
from decodex.shipped_heads import with_speculation
from decodex.spec.proposer import Proposer
from decodex.spec.target import TensorProposer
from decodex.speculation import Speculation
from decodex.speculative_config import AUTO, CUSTOM, SpeculativeConfig, is_replayable
from decodex.table import RequestTable
from decodex.tokenizer import Tokenizer
from decodex.verdicts import Verdicts

__all__ = ["Engine"]

logger = logging.getLogger(__name__)

# parameters that can leave a row without a token
MASKS = (
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "no_repeat_ngram_size",
    "min_tokens",
    "max_thinking_tokens",
    "logits_processors",
    "structured_outputs",
)


def check_torch_defaults() -> None:
    """Raise EngineError where torch's process-wide defaults were changed: new tensors would have the wrong dtype."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    if dtype != torch.float32 or device.type != "cpu":
        raise EngineError(
            f"torch's defaults are {dtype} on {device}, expected torch.float32 on cpu: "
            "undo torch.set_default_dtype / torch.set_default_device around decodex"
        )


def _drafter(
    config: EngineConfig, model: CausalLM, tokenizer: Tokenizer, device: torch.device
) -> TensorProposer | None:
    """The loaded model of `speculative_config`, where its method has one."""
    wanted = config.speculative_config
    if not isinstance(wanted, SpeculativeConfig) or wanted.with_weights is None or wanted.model is None:
        return None
    return load_drafter(
        wanted.with_weights,
        wanted.model,
        model,
        tokenizer,
        device,
        layer_ids=wanted.layer_ids,
        quantization=wanted.quantization,
    )


class Engine:
    """Requests in, tokens out. `step()` is the whole loop; everything else is bookkeeping around it."""

    def __init__(
        self,
        config: EngineConfig,
        model: CausalLM,
        tokenizer: Tokenizer,
        device: torch.device | None = None,
        proposer: Proposer | None = None,
        drafter: TensorProposer | None = None,
    ) -> None:
        """`proposer`: one's own, asked where a request names no methods; `drafter`: the loaded model of
        `speculative_config`."""
        device = torch.device("cpu") if device is None else device
        check_torch_defaults()
        self.model = model
        self.tokenizer = tokenizer
        kv_spec = [*model.kv_spec, *(LayerKV(*layer) for layer in (drafter.kv_layers if drafter is not None else ()))]
        self.config = resolve(config, model.max_position, kv_spec, device)
        self.fingerprint = system_fingerprint(model, f"{config.dtype}/{config.quantization}", device)
        vocabulary = Vocabulary(tokenizer, model.vocab_size)
        processors = [bind(processor) for processor in config.logits_processors]
        features = build_features(vocabulary, processors, device)
        self.mask_times = next(feature.times for feature in features if isinstance(feature, GrammarMasks))
        self.grammars = Grammars(vocabulary)
        speculative = None if config.speculative_config == AUTO else config.speculative_config
        if proposer is not None and speculative is not False:
            if speculative is not None:
                raise RequestError("speculative_config", speculative, "None or false beside a proposer of one's own")
            speculative = CUSTOM
        self.admission = Admission(
            self.config, tokenizer, model.vocab_size, features, self.grammars, processors, speculative
        )
        exempt = [*vocabulary.eos_token_ids, *vocabulary.newline_ids()]
        self.table = RequestTable(self.config.max_num_seqs, self.config.max_blocks_per_seq, features, exempt)
        self.scheduler = Scheduler(self.config, self.table)
        kv = KVCache(kv_spec, self.config.num_blocks, self.config.block_size, device)
        self.runner = ModelRunner(model, kv, self.table, device)
        self.sampler = Sampler(self.table, features, tokenizer)
        chooser = DraftChooser(self.table, features, min(tokenizer.vocab_size, model.vocab_size))
        corpus = getattr(speculative, "suffix_corpus_mib", 0.0)
        tables = self.table.block_tables
        self.speculation = Speculation(proposer, drafter, self.scheduler, chooser, tables, kv, corpus)
        self.verdicts = Verdicts(IndependentCheck() if self.config.check_outputs else None)
        self._requests: dict[str, Request] = {}

    @staticmethod
    def load(config: EngineConfig) -> Engine:
        """Resolve, load and pack the model of a config. Raises ModelError or RequestError."""
        device = resolve_device(config.device)
        files = resolve_model(config.model)
        tokenizer = Tokenizer(files.path)
        model = load_model(files, dtype=config.dtype, quantization=config.quantization, device=device)
        config = with_speculation(config, model, files.path)
        engine = Engine(config, model, tokenizer, device, drafter=_drafter(config, model, tokenizer, device))
        if config.speculative_config is not False:
            engine.speculation.begin_control(step_costs(model, engine.fingerprint, device))
        return engine

    def close(self) -> None:
        """End the processes and threads that the engine has started. Nothing may be asked of it any more."""
        self.verdicts.close()
        self.grammars.close()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work or bool(self.verdicts)

    @property
    def has_queue_room(self) -> bool:
        """Whether one more request would be accepted."""
        return len(self.scheduler.waiting) < self.config.max_queued_requests

    def add(self, request: Request) -> None:
        """Queue a request. Raises QueueFullError, or RequestError for an id that is in use."""
        if request.request_id in self._requests:
            raise RequestError("request_id", request.request_id, "an id that is not in use")
        if not self.has_queue_room:
            raise QueueFullError(f"{self.config.max_queued_requests} requests wait already (max_queued_requests)")
        self._requests[request.request_id] = request
        self.verdicts.expect(request)
        for seq in request.sequences:
            self.scheduler.add(seq)

    def abort(self, request_id: str) -> Request | None:
        """End a request now with finish reason `abort`; an id that is not in flight is no error."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, "abort", None)
        return request

    def fail_all(self, error: DecodexError) -> list[Request]:
        """End every request in flight with an error (after a step that raised)."""
        failed = list(self._requests.values())
        for request in failed:
            self._end(request, "error", error)
        return failed

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Take the verdicts that have come, or else one decode step. Returns the requests that got tokens or ended."""
        check_torch_defaults()
        is_idle = not self.scheduler.has_work
        settled = self._settle(wait=is_idle)
        return settled if settled or is_idle else self._decode()

    def _decode(self) -> list[Request]:
        plan = self.scheduler.plan()
        self.speculation.fit(plan)
        batch = self.runner.stage(plan)
        self.sampler.prepare(batch)  # grammar masks are filled while the forward runs, where it leaves a core
        forward = self.runner.forward(batch, *self.speculation.reads(batch))
        output = self.sampler.sample(forward.logits, batch)
        touched = self._commit(batch, output)
        self.speculation.propose(batch, output, forward)  # for the next step
        return touched

    def output_of(self, request: Request) -> RequestOutput:
        """A snapshot of a request's answer."""
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[seq.completion.output() for seq in request.sequences],
            finished=request.is_finished,
            metrics=request.metrics,
            replayable=self.model.replayable and is_replayable(request.speculation),
            system_fingerprint=self.fingerprint,
            error=request.error,
            prompt_logprobs=None if request.prompt_logprobs is None else list(request.prompt_logprobs),
        )

    def _commit(self, batch: StepBatch, output: StepOutput) -> list[Request]:
        """Advance KV lengths, tokens and texts; end what is finished."""
        self.runner.compact(batch, output)
        for entry in batch.entries:
            entry.seq.num_computed = entry.start + entry.num_tokens
        for rows, found in zip(batch.prompt_rows, output.prompt_logprobs, strict=True):
            done = rows.entry.seq.request.prompt_logprobs
            assert done is not None
            assert len(done) == rows.first, f"prompt_logprobs: {len(done)} known, rows from {rows.first}"
            done.extend(found)
        touched: dict[str, Request] = {}
        for entry, tokens, logprobs, error in zip(
            batch.sampled, output.token_ids, output.logprobs, output.errors, strict=True
        ):
            seq = entry.seq
            touched[seq.request.request_id] = seq.request
            for index, token in enumerate(tokens):
                if token < 0:
                    self._fail(seq, error)
                    break
                seq.token_ids.append(token)
                try:
                    if seq.completion.push(token, None if logprobs is None else logprobs[index]):
                        break
                except MatcherError as failure:
                    self._fail(seq, f"the grammar's backend failed: {failure}")
                    break
            # drafts that were accepted are computed, the last token is not
            seq.num_computed = max(seq.num_computed, len(seq.token_ids) - 1)
        self.speculation.observe(batch, output)
        for entry in batch.entries:
            self.scheduler.register_computed(entry)
        for request in touched.values():
            self._note_progress(request)
        return list(touched.values())

    def _note_progress(self, request: Request) -> None:
        now = time.time()
        if request.metrics.first_token_time is None:
            request.metrics.first_token_time = now
        for seq in request.sequences:
            if seq.status in (Status.WAITING, Status.RUNNING) and seq.completion.finish_reason is not None:
                self.scheduler.finish(seq)
                self.speculation.forget(seq)
                self.verdicts.begin(seq)
        self._note_end(request, now)

    def _note_end(self, request: Request, now: float) -> None:
        if request.is_finished:
            request.metrics.finished_time = now
            del self._requests[request.request_id]

    def _settle(self, wait: bool) -> list[Request]:
        """Take the verdicts that have come."""
        settled = self.verdicts.settle(wait)
        for request in settled:
            self._note_end(request, time.time())
        return settled

    def _fail(self, seq: Sequence, error: str | None) -> None:
        position = len(seq.token_ids)
        where = f"choice {seq.index}, position {position}"
        params, plain = seq.request.params, SamplingParams()
        masks = tuple(name for name in MASKS if getattr(params, name) != getattr(plain, name))
        if error is not None:
            seq.request.error = EngineError(f"{where}: {error}")
        elif masks:
            by = f"NaN logits, or every token is masked by {', '.join(masks)}"
            seq.request.error = NoTokenLeftError(f"{where}: no token is left ({by})", masks)
        else:
            seq.request.error = EngineError(f"{where}: no token is left (NaN logits, or every token is masked)")
        seq.completion.finish("error")

    def _end(self, request: Request, reason: str, error: DecodexError | None) -> None:
        request.error = error
        for seq in request.sequences:
            if seq.status is not Status.FINISHED:
                self.verdicts.drop(seq)
                seq.completion.finish(reason)
                self.scheduler.finish(seq)
                self.speculation.forget(seq)
        request.metrics.finished_time = time.time()
        del self._requests[request.request_id]
