"""The flags that choose a model and size its engine, for every command that loads one."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from outrider.config.attention_choice import TARGET_FLAG, parse_attention
from outrider.config.draft_config import DraftConfig
from outrider.config.engine_config import (
    Auto,
    CacheConfig,
    EngineConfig,
    ExecutionConfig,
    Executor,
    KVCacheDtype,
    LimitsConfig,
    LoraConfig,
    NodesConfig,
    ParallelConfig,
    QuantizationFlag,
    RankBackend,
    choose_executor,
)
from outrider.errors import ConfigError
from outrider.hub.aliases import DEFAULT_ALIAS

if TYPE_CHECKING:
    from outrider.frontend.llm import LLM
    from outrider.frontend.open_model import ModelChoice

ModelArgument = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.", show_default=False)
]


def _flag(text: str, *names: str, least: int | None = None) -> Any:
    """A flag. The first name is ours; the others are those of vLLM, SGLang or llama.cpp."""
    return typer.Option(*names, help=text, rich_help_panel="Model", min=least)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """Which model runs, and where."""

    model: Annotated[
        str, _flag("Alias, hub id, GGUF file or folder.", "--model", "--model-path", "-m")
    ] = DEFAULT_ALIAS
    config: Annotated[Path | None, _flag("YAML file of flags; those given here win.")] = None
    revision: Annotated[str, _flag("Branch, tag or commit of the hub.")] = ""
    tokenizer: Annotated[
        str, _flag("Another tokenizer, like --model.", "--tokenizer", "--tokenizer-path")
    ] = ""
    chat_template: Annotated[str, _flag("A jinja file, or the template itself.")] = ""
    generation_config: Annotated[
        str, _flag("Default sampling: auto (the model's), vllm (the engine's), or a folder.")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8", "packed"],
        _flag("Type of the weights in memory."),
    ] = "auto"
    quantization: Annotated[
        QuantizationFlag,
        _flag(
            "fp8: quantise the projections of a float model at load. The form of a quantised "
            "folder changes nothing."
        ),
    ] = "none"
    device: Annotated[str, _flag("auto, cpu, cuda, cuda:1, ...")] = "auto"
    max_context: Annotated[
        int | None,
        _flag(
            "Tokens of prompt and answer; default: the model's own.",
            "--max-context",
            "--max-model-len",
            "--context-length",
            "--ctx-size",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        _flag("Requests at once.", "--max-num-seqs", "--max-running-requests", least=1),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, _flag("Query tokens of one step, drafts included.", least=1)
    ] = None
    kv_tokens: Annotated[
        int | None,
        _flag("Tokens that the KV cache holds.", "--kv-tokens", "--max-total-tokens", least=1),
    ] = None
    block_size: Annotated[
        int | None, _flag("Tokens of a KV page.", "--block-size", "--page-size", least=1)
    ] = None
    kv_cache_dtype: Annotated[
        KVCacheDtype,
        _flag("Type of keys and values: the model's, or fp8, which stores them in one byte."),
    ] = "auto"
    attention_backend: Annotated[
        str, _flag("auto, triton, compiled, reference or per_layer (docs/attention.md).")
    ] = "auto"
    enable_prefix_caching: Annotated[bool, _flag("Share the KV of equal prefixes.")] = True
    row_snapshots: Annotated[
        int | None,
        _flag("Copies of row state that cached prefixes continue from; 0 for none.", least=0),
    ] = None
    window_tokens: Annotated[
        int | None, _flag("Tokens that layers with a sliding window have room for.", least=1)
    ] = None
    executor: Annotated[
        Literal["auto", "eager", "graph", "breakable", "tape"],
        _flag("How steps run; auto records CUDA graphs on a GPU."),
    ] = "auto"
    disable_cuda_graph: Annotated[
        bool, _flag("The same as --executor eager.", "--disable-cuda-graph", "--enforce-eager")
    ] = False
    depth: Annotated[int | None, _flag("1 overlaps planning with the device, 0 waits.")] = None
    record: Annotated[
        Literal["auto", "lazy", "at start"],
        _flag("When graphs are captured; auto: at start in a server, else when needed."),
    ] = "auto"
    deterministic: Annotated[
        bool,
        _flag(
            "On a GPU, answers depend on neither batch nor drafts, to the last bit.",
            "--deterministic/--no-deterministic",
        ),
    ] = True
    gpu_memory_utilization: Annotated[
        float,
        _flag(
            "Share of a GPU's memory that the engine may hold.",
            "--gpu-memory-utilization",
            "--mem-fraction-static",
        ),
    ] = 0.9
    tensor_parallel_size: Annotated[
        int,
        _flag(
            "Processes that share every layer, one per GPU.",
            "--tensor-parallel-size",
            "--tp",
            "--tp-size",
            least=1,
        ),
    ] = 1
    data_parallel_size: Annotated[
        int,
        _flag(
            "Copies of the model with requests of their own, one per GPU (times --tp).",
            "--data-parallel-size",
            "--dp",
            "--dp-size",
            least=1,
        ),
    ] = 1
    enable_expert_parallel: Annotated[
        bool,
        _flag(
            "The processes of --data-parallel-size hold some of the experts each.",
            "--enable-expert-parallel",
            "--enable-dp-attention",
        ),
    ] = False
    limit_mm_per_prompt: Annotated[
        str, _flag("The most images of a prompt: image=2, or JSON of vLLM; default: 16.")
    ] = ""
    allowed_local_media_path: Annotated[
        str, _flag("Folder whose images prompts may name by file: URLs; default: none.")
    ] = ""
    allowed_media_domains: Annotated[
        str, _flag("Hosts that images of prompts are downloaded from, a comma list; default: none.")
    ] = ""
    enable_lora: Annotated[bool, _flag("Let requests name LoRA adapters.", "--enable-lora")] = False
    enable_draft_lora: Annotated[
        bool, _flag("Let the draft head take adapters, too.", "--enable-draft-lora")
    ] = False
    max_loras: Annotated[
        int,
        _flag("Adapters in one step.", "--max-loras", "--max-loras-per-batch", least=1),
    ] = LoraConfig().max_loras
    max_lora_rank: Annotated[int, _flag("Largest rank of an adapter.", least=1)] = (
        LoraConfig().max_rank
    )
    nnodes: Annotated[
        int, _flag("Machines that compute the model together.", "--nnodes", least=1)
    ] = 1
    node_rank: Annotated[
        int, _flag("Number of this machine; machine 0 serves.", "--node-rank", least=0)
    ] = 0
    dist_init_addr: Annotated[
        str, _flag("HOST:PORT of machine 0.", "--dist-init-addr", "--nccl-init-addr")
    ] = ""
    dist_timeout: Annotated[float, _flag("Seconds to wait for a machine that has not come.")] = (
        NodesConfig().timeout_s
    )
    distributed_executor_backend: Annotated[
        RankBackend, _flag("What starts the other ranks: mp for child processes, or ray.")
    ] = "mp"
    rank_timeout: Annotated[
        float, _flag("Seconds without a sign of life of a rank, after which its group is replaced.")
    ] = ParallelConfig().timeout_s

    @property
    def chosen_executor(self) -> Executor | Auto:
        """The executor that --executor and --disable-cuda-graph choose."""
        return choose_executor(self.executor, is_eager=self.disable_cuda_graph)

    def of(self, argument: str | None) -> "ModelFlags":
        """The flags with the model of the positional argument, if it was given."""
        if argument is None:
            return self
        if self.model not in (DEFAULT_ALIAS, argument):
            raise ConfigError(f"the model is {argument} and --model {self.model}; keep one of them")
        return replace(self, model=argument)

    def load(self, draft: DraftConfig, **settings: Any) -> "LLM":
        """The model with this drafter; `settings` are arguments of `LLM` that replace flags."""
        from outrider.frontend.llm import LLM

        flags = {
            "executor": self.chosen_executor,
            "max_num_seqs": self.max_num_seqs or "auto",
            "depth": "auto" if self.depth is None else self.depth,
            "enable_lora": self.enable_lora,
        }
        return LLM(
            self.model,
            draft=draft,
            dtype=self.dtype,
            quantization=self.quantization,
            device=self.device,
            max_model_len=self.max_context,
            max_num_batched_tokens=self.max_num_batched_tokens or "auto",
            kv_tokens=self.kv_tokens or "auto",
            block_size=self.block_size or "auto",
            enable_prefix_caching=self.enable_prefix_caching,
            kv_cache_dtype=self.kv_cache_dtype,
            row_snapshots="auto" if self.row_snapshots is None else self.row_snapshots,
            window_tokens=self.window_tokens or "auto",
            attention_backend=self.attention_backend,
            **(flags | settings),
            record=self.record,
            deterministic=self.deterministic,
            gpu_memory_utilization=self.gpu_memory_utilization,
            tensor_parallel_size=self.tensor_parallel_size,
            data_parallel_size=self.data_parallel_size,
            enable_expert_parallel=self.enable_expert_parallel,
            rank_timeout=self.rank_timeout,
            enable_draft_lora=self.enable_draft_lora,
            max_loras=self.max_loras,
            max_lora_rank=self.max_lora_rank,
            nnodes=self.nnodes,
            node_rank=self.node_rank,
            dist_init_addr=self.dist_init_addr,
            dist_timeout=self.dist_timeout,
            distributed_executor_backend=self.distributed_executor_backend,
            revision=self.revision,
            tokenizer=self.tokenizer,
            chat_template=self.chat_template,
            generation_config=self.generation_config,
            limit_mm_per_prompt=self.limit_mm_per_prompt,
            allowed_local_media_path=self.allowed_local_media_path,
            allowed_media_domains=self.allowed_media_domains,
        )

    def choice(self) -> "ModelChoice":
        """The model, its text files and its limits on images, for a server."""
        from outrider.frontend.images.image_limits import parse_limits
        from outrider.frontend.open_model import ModelChoice
        from outrider.frontend.tokenizer.open_tokenizer import TokenizerChoice

        text = TokenizerChoice(tokenizer=self.tokenizer, chat_template=self.chat_template)
        return ModelChoice(
            model=self.model,
            revision=self.revision,
            text=text,
            generation_config=self.generation_config,
            image_limits=parse_limits(
                self.limit_mm_per_prompt, self.allowed_local_media_path, self.allowed_media_domains
            ),
        )

    def engine_config(self, draft: DraftConfig) -> EngineConfig:
        """The settings of an engine, for a server."""
        return EngineConfig(
            dtype=self.dtype,
            quantization=self.quantization,
            device=self.device,
            parallel=ParallelConfig(
                tensor=self.tensor_parallel_size,
                data=self.data_parallel_size,
                is_expert_parallel=self.enable_expert_parallel,
                timeout_s=self.rank_timeout,
                nodes=NodesConfig(
                    num=self.nnodes,
                    rank=self.node_rank,
                    address=self.dist_init_addr,
                    timeout_s=self.dist_timeout,
                    backend=self.distributed_executor_backend,
                ),
            ),
            execution=ExecutionConfig(
                executor=self.chosen_executor,
                depth="auto" if self.depth is None else self.depth,
                # A request must not wait for the capture of another one's shape.
                record="at start" if self.record == "auto" else self.record,
                deterministic=self.deterministic,
            ),
            attention=parse_attention(self.attention_backend, TARGET_FLAG),
            cache=CacheConfig(
                page_size=self.block_size or "auto",
                kv_tokens=self.kv_tokens or "auto",
                prefix=self.enable_prefix_caching,
                kv_dtype=self.kv_cache_dtype,
                row_snapshots="auto" if self.row_snapshots is None else self.row_snapshots,
                window_tokens=self.window_tokens or "auto",
                memory_share=self.gpu_memory_utilization,
            ),
            limits=LimitsConfig(
                context="auto" if self.max_context is None else self.max_context,
                rows=self.max_num_seqs or "auto",
                step_tokens=self.max_num_batched_tokens or "auto",
            ),
            draft=draft,
            lora=LoraConfig(
                is_enabled=self.enable_lora,
                for_drafts=self.enable_draft_lora,
                max_loras=self.max_loras,
                max_rank=self.max_lora_rank,
            ),
        )
