"""From the user's choice of a model to what an engine and its front end need, before torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outrider.config.engine_config import EngineConfig
from outrider.frontend.find_drafter import find_drafter
from outrider.frontend.images.image_limits import DEFAULT_LIMITS, ImageLimits
from outrider.frontend.tokenizer.open_tokenizer import (
    MODELS_OWN,
    TokenizerChoice,
    open_tokenizer,
    tokenizer_folder,
)
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.hub.download_progress import Reporter
from outrider.hub.generation_config import AUTO, SamplingDefaults, sampling_defaults
from outrider.hub.pooling_config import PoolingConfig, read_pooling
from outrider.hub.resolve_model import resolve_model
from outrider.hub.vision_config import TEXT_BY_CHOICE, VisionConfig, read_vision


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """Which model runs, with which text files. Empty values mean the model's own."""

    model: str  # an alias, a hub id, a GGUF file or a folder
    revision: str = ""  # of a model on the hub: a branch, a tag or a commit
    text: TokenizerChoice = MODELS_OWN
    generation_config: str = AUTO  # auto, vllm, or a folder
    pooler: Mapping[str, Any] = field(default_factory=dict)  # vLLM's pooler config
    image_limits: ImageLimits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """The files of a model, found and read as far as the front end needs them."""

    folder: Path
    tokenizer: Tokenizer | NoTokenizer
    config: EngineConfig  # with the drafter that was found
    sampling_defaults: SamplingDefaults
    pooling: PoolingConfig  # how embeddings of texts are made
    vision: VisionConfig  # whether it reads images
    image_limits: ImageLimits


def open_model(choice: ModelChoice, config: EngineConfig, reporter: Reporter) -> OpenedModel:
    """Find or download the model, its tokenizer and its drafter."""
    folder = resolve_model(choice.model, reporter, revision=choice.revision)
    draft = find_drafter(config.draft, model=choice.model, folder=folder, reporter=reporter)
    text_folder = tokenizer_folder(choice.text, folder, reporter)
    vision = read_vision(folder) if choice.image_limits.per_prompt else TEXT_BY_CHOICE
    return OpenedModel(
        folder=folder,
        tokenizer=open_tokenizer(text_folder, choice.text),
        config=replace(
            config,
            draft=draft,
            has_tower=vision.reads_images,
            tokenizer_folder=str(text_folder.resolve()),
        ),
        sampling_defaults=sampling_defaults(
            folder, model=choice.model, source=choice.generation_config
        ),
        pooling=read_pooling(folder, choice.pooler),
        vision=vision,
        image_limits=choice.image_limits,
    )
