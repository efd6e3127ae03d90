"""The offline entry point. Names and shapes are vLLM's where it has them."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

from outrider.config.attention_choice import TARGET_FLAG, parse_attention
from outrider.config.draft_config import DraftConfig
from outrider.config.draft_dialects import choose_dialect
from outrider.config.early_ranks import EarlyRanks, num_early_ranks
from outrider.config.engine_config import (
    Auto,
    CacheConfig,
    CaptureTime,
    Dtype,
    EngineConfig,
    Executor,
    LimitsConfig,
)
from outrider.config.threads import choose_wait_policy
from outrider.engine.parallel_engine import AnyEngine
from outrider.errors import OutriderError, RequestError
from outrider.frontend.batch_bar import batch_bar, no_bar
from outrider.frontend.frontend import Frontend
from outrider.frontend.images.image_prompts import open_image_prompts
from outrider.frontend.interrupts import held_interrupts, import_torch
from outrider.frontend.llm_config import (
    cache_config,
    execution_config,
    limits_config,
    own_draft,
    parallel_config,
)
from outrider.frontend.lora_request import LoRARequest, adapter_of, adapters_of_each
from outrider.frontend.open_model import OpenedModel, open_model
from outrider.frontend.outputs import RequestOutput, StreamDelta
from outrider.frontend.pooling import READ_ONLY, EmbeddingRequestOutput, embedding_of, to_pool
from outrider.frontend.prompts import (
    Message,
    Prompt,
    TextPrompt,
    TokenPrompt,
    is_conversation,
    list_conversations,
    list_prompts,
    parse_prompt,
)
from outrider.frontend.request_feed import Feed
from outrider.frontend.request_state import DeltaReader, PreparedRequest, RequestState
from outrider.frontend.sampling_params import SamplingParams, override
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.frontend.vllm_arguments import (
    OtherArguments,
    choose_model,
    lora_config,
    read_arguments,
)
from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.download_bars import BarReporter
from outrider.wire.runner_facts import WeightStorage
from outrider.wire.sleep_level import parse_level, parse_tags

Item = TypeVar("Item")
Result = TypeVar("Result")

_CACHE, _LIMITS = CacheConfig(), LimitsConfig()

# Requests in the engine at a time: enough to fill its rows, few enough to fit in memory.
MAX_IN_FLIGHT = 256


class Stream:
    """One request, read while it runs. Iterate for what is new, `close` to stop early.

    A stream that is dropped half-way aborts its request.
    """

    def __init__(self, frontend: Frontend, request: RequestState) -> None:
        self._request = request
        self._frontend = frontend
        self._deltas = _read(frontend, request)

    @classmethod
    def open(
        cls, frontend: Frontend, prompt: TextPrompt | TokenPrompt, params: SamplingParams
    ) -> "Stream":
        """Check and submit a request, to be read while it runs."""
        return cls(frontend, frontend.submit(frontend.inputs.prepare(prompt, params)))

    def __iter__(self) -> Iterator[StreamDelta]:
        return self._deltas

    def __next__(self) -> StreamDelta:
        return next(self._deltas)

    @property
    def output(self) -> RequestOutput:
        """The request so far; final once the iteration has ended or was closed."""
        with self._frontend.reading():
            return self._request.output()

    def close(self) -> None:
        """Abort the request unless it has ended."""
        self._deltas.close()
        self._frontend.abort(self._request)  # a generator that never began has nothing to close


def _read(frontend: Frontend, request: RequestState) -> Generator[StreamDelta, None, None]:
    readers = [DeltaReader(index, output) for index, output in enumerate(request.outputs)]
    try:
        # Another reader of the same engine may have stepped it, so ours can end before we look.
        while not request.is_finished or any(reader.has_delta for reader in readers):
            with frontend.reading():
                deltas = [reader.take() for reader in readers if reader.has_delta]
            yield from deltas
            if not request.is_finished:
                frontend.step()
    finally:
        frontend.abort(request)


class LLM:
    """Owns one loaded model. Threads may share it: their requests run in one batch.

    `model` is an alias, a hub id, a GGUF file or a folder. `draft` chooses the drafter: "auto" for
    the head that belongs to the model, "none", "ngram", "suffix", "mtp", or a smaller model or head
    given as `model`; `steps`, `topk` and `nodes` size its trees. It changes speed, never a token.
    `seed` is for requests without one. `OtherArguments` has the rest: the tokenizer, the chat
    template, default sampling, and names of vLLM and of our command line.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_ALIAS,
        *,
        draft: str | Path | DraftConfig = "auto",
        steps: int | Auto = "auto",
        topk: int | Auto = "auto",
        nodes: int | Auto = "auto",
        adaptive: bool | Auto = "auto",  # False always drafts; auto does what `draft` says
        speculative_config: Mapping[str, Any] | None = None,  # the same choice in vLLM's words
        dtype: Dtype | Auto = "auto",
        device: str = "auto",
        max_model_len: int | None = None,  # None takes the model's own
        max_num_seqs: int | Auto = _LIMITS.rows,
        max_num_batched_tokens: int | Auto = _LIMITS.step_tokens,
        enable_prefix_caching: bool = _CACHE.prefix,
        block_size: int | Auto = _CACHE.page_size,
        kv_tokens: int | Auto = _CACHE.kv_tokens,
        executor: Executor | Auto = "auto",
        depth: int | Auto = "auto",
        record: CaptureTime | Auto = "auto",  # "at start": capture shapes before the first request
        deterministic: bool = True,
        enforce_eager: bool = False,
        gpu_memory_utilization: float = _CACHE.memory_share,
        seed: int | None = None,
        **others: Unpack[OtherArguments],
    ) -> None:
        flags = read_arguments(others)
        own = own_draft(draft, flags, steps=steps, topk=topk, nodes=nodes, adaptive=adaptive)
        config = EngineConfig(
            dtype=dtype,
            quantization=flags.get("quantization") or "none",
            device=device,
            parallel=parallel_config(flags),
            lora=lora_config(flags),
            attention=parse_attention(flags.get("attention_backend") or "auto", TARGET_FLAG),
            draft=choose_dialect(own, vllm=speculative_config, sglang={}),
            limits=limits_config(flags, max_model_len, max_num_seqs, max_num_batched_tokens),
            cache=cache_config(
                flags, block_size, kv_tokens, enable_prefix_caching, gpu_memory_utilization
            ),
            execution=execution_config(
                flags, executor, enforce_eager, depth, record, deterministic
            ),
        )
        opened = open_model(choose_model(str(model), flags), config, BarReporter())
        self._engine, self._pooling = _open_engine(opened), opened.pooling
        images = open_image_prompts(opened.folder, opened.vision, opened.image_limits)
        self.frontend = Frontend(self._engine, opened.tokenizer, images)
        self._defaults = override(SamplingParams(seed=seed), opened.sampling_defaults)

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of calls without any: the model's own, where its files name them."""
        return self._defaults

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """The outputs in the order of the prompts; nothing runs unless every request is valid."""
        parsed = _each(list_prompts(prompts), parse_prompt)
        return self._run(parsed, sampling_params, lora_request, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        tools: Sequence[Message] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Answers to one conversation or several, rendered by the model's chat template."""
        variables = {
            "add_generation_prompt": add_generation_prompt,
            "tools": tuple(tools or ()),
            **(chat_template_kwargs or {}),
        }
        rendered = _each(
            list_conversations(messages),
            lambda conversation: self.frontend.inputs.render(conversation, **variables),
        )
        return self._run(rendered, sampling_params, lora_request, use_tqdm=use_tqdm)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = True
    ) -> list[EmbeddingRequestOutput]:
        """An embedding of each prompt, pooled as the model's files or `pooler_config` say."""
        parsed = _each(list_prompts(prompts), parse_prompt)
        prepared = _each(parsed, lambda each: self.frontend.inputs.prepare(each, READ_ONLY))
        wanted = [to_pool(each, self._pooling) for each in prepared]
        done = self._finish(wanted, use_tqdm=use_tqdm)
        return [embedding_of(each, self._pooling) for each in done]

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
    ) -> Stream:
        """One prompt, or one conversation as `chat` takes it, answered piece by piece."""
        prepared = self.prepare(prompt, sampling_params, lora_request)
        return Stream(self.frontend, self.frontend.submit(prepared))

    def prepare(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
    ) -> PreparedRequest:
        """One prompt, or one conversation as `chat` takes it, checked and ready to submit."""
        if is_conversation(prompt):
            parsed: TextPrompt | TokenPrompt = self.frontend.inputs.render(prompt)
        else:
            parsed = parse_prompt(prompt)
        params = self._seeded(sampling_params or self._defaults)
        return self.frontend.inputs.prepare(parsed, params, adapter_of(lora_request))

    def sleep(self, level: int = 1) -> None:
        """Give memory back until `wake_up`. Requests that run now end with finish reason "abort".

        Level 1 moves the weights of a GPU to host memory and frees the KV cache, level 2 frees
        both, and level 0 only stops.
        """
        parsed = parse_level(level)
        with self.frontend.emptied(), held_interrupts():
            self._engine.sleep(parsed)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring back the weights and an empty KV cache, or what the tags name of them.

        After level 2 the weights are read from their files again.
        """
        parsed = parse_tags(tags or ())
        with self.frontend.between_steps():
            self._engine.wake_up(parsed)

    @property
    def weight_storage(self) -> tuple[WeightStorage, ...]:
        """In what form the weights of the target were loaded."""
        return self._engine.facts.memory.weights

    @property
    def device(self) -> str:
        """Where the model is, such as cpu or cuda; of several ranks the first one's."""
        return self._engine.facts.memory.ranks[0].device

    def is_sleeping(self) -> bool:
        """Whether something has to be woken up before requests can run."""
        return bool(self._engine.asleep)

    def get_tokenizer(self) -> Tokenizer | NoTokenizer:
        return self.frontend.tokenizer

    def _seeded(self, params: SamplingParams) -> SamplingParams:
        return replace(params, seed=self._defaults.seed) if params.seed is None else params

    def _run(
        self,
        prompts: Sequence[TextPrompt | TokenPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
        *,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        params = _params_of_each(
            self._defaults if sampling_params is None else sampling_params, len(prompts)
        )
        seeded = {id(each): self._seeded(each) for each in params}  # equal ones stay one object
        adapters = adapters_of_each(lora_request, len(prompts))
        columns = zip(prompts, [seeded[id(each)] for each in params], adapters, strict=True)
        prepared = _each(list(columns), lambda row: self.frontend.inputs.prepare(*row))
        return [each.output() for each in self._finish(prepared, use_tqdm=use_tqdm)]

    def _finish(self, prepared: Sequence[PreparedRequest], *, use_tqdm: bool) -> list[RequestState]:
        """Run requests to their ends; returns them in order."""
        requests: dict[int, RequestState] = {}
        with batch_bar(len(prepared)) if use_tqdm else no_bar() as advance:
            for index, done in Feed(
                self.frontend, enumerate(prepared), max_in_flight=MAX_IN_FLIGHT
            ):
                if not isinstance(done, RequestState):
                    raise _named(done, index, len(prepared))
                requests[index] = done
                advance(done.usage.completion_tokens)
        return [requests[index] for index in range(len(prepared))]


def _open_engine(opened: OpenedModel) -> AnyEngine:
    choose_wait_policy()  # the other ranks inherit it
    early = EarlyRanks(num_early_ranks(opened.config.parallel))
    try:
        import_torch()
        from outrider.frontend.build_engine import (
            build_engine,  # imports torch, so wrong names fail first
        )

        return build_engine(opened.folder, opened.config, early=early)
    finally:
        early.close()


def _params_of_each(
    params: SamplingParams | Sequence[SamplingParams], num_prompts: int
) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise RequestError(
            f"{len(params)} sampling params for {num_prompts} prompts; give one, or one for each"
        )
    return list(params)


def _each(items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
    """Apply the function to every item. An error message names the item."""
    results = []
    for index, item in enumerate(items):
        try:
            results.append(function(item))
        except RequestError as error:
            raise _named(error, index, len(items)) from error
    return results


def _named(error: OutriderError, index: int, total: int) -> OutriderError:
    return error if total == 1 else type(error)(f"prompt {index}: {error}")
