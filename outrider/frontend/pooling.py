"""Embeddings of texts: one vector of a text's hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.errors import RequestError
from outrider.frontend.request_state import PreparedRequest, RequestState
from outrider.frontend.sampling_params import SamplingParams
from outrider.hub.pooling_config import PoolingConfig
from outrider.wire.hidden_states import RowStatesMode

READ_ONLY = SamplingParams(max_tokens=0, temperature=0.0)  # a text is read, and nothing answered


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """The embedding of one text, as in vLLM."""

    embedding: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequestOutput:
    """One text that was embedded. Names and shapes are vLLM's."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


def check_dimensions(dimensions: int | None, config: PoolingConfig, hidden_size: int) -> int:
    """The length of embeddings; a shorter one than the model's only if it was trained for that."""
    if dimensions is None or dimensions == hidden_size:
        return hidden_size
    if not config.is_matryoshka:
        raise RequestError(
            "this model was not trained to be cut (matryoshka); leave dimensions out"
        )
    if dimensions not in (config.dimensions or range(1, hidden_size)):
        sizes = ", ".join(map(str, config.dimensions)) or f"1 to {hidden_size}"
        raise RequestError(f"dimensions must be one of {sizes}, got {dimensions}")
    return dimensions


def to_pool(prepared: PreparedRequest, config: PoolingConfig) -> PreparedRequest:
    """The request as one that reports what pooling needs."""
    if config.problem:
        raise RequestError(config.problem)
    mode: RowStatesMode = "sum" if config.kind == "mean" else "last"
    samplings = [replace(each, hidden_states=mode) for each in prepared.samplings]
    return replace(prepared, samplings=tuple(samplings))


def pooled(request: RequestState, config: PoolingConfig, dimensions: int) -> Sequence[float]:
    """The embedding of a text whose request has ended."""
    import numpy as np  # `--help` imports this module

    vector = request.outputs[0].hidden_states.array()[-1].astype("f8")
    if config.kind == "mean":
        vector = vector / len(request.prepared.prompt)
    vector = vector[:dimensions]
    if config.is_normalized:
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    values: list[float] = vector.astype("f4").tolist()
    return values


def embedding_of(request: RequestState, config: PoolingConfig) -> EmbeddingRequestOutput:
    """The output of a request, for Python."""
    if not request.failure.is_none:
        raise RequestError(request.failure.reason)
    width = request.outputs[0].hidden_states.width
    return EmbeddingRequestOutput(
        request_id=request.request_id,
        outputs=EmbeddingOutput(embedding=list(pooled(request, config, width))),
        prompt_token_ids=list(request.prepared.known_prompt),
    )
