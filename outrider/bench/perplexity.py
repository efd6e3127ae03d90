"""`outrider bench perplexity`: the loss of quality by a type of weights, on the user's texts.

Perplexity is exp of the mean negative log-likelihood of every token after the first of its text,
without temperature or filters. It runs the serving decoder: its weights, planner, attention, pages.
"""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from outrider.config.engine_config import Dtype
from outrider.errors import ConfigError
from outrider.frontend.tokenizer.tokenizer import load_tokenizer
from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.kv.reference_attention import ReferenceAttention
from outrider.models.decoder import Decoder
from outrider.models.decoder_loader import load_decoder
from outrider.models.draft_model import AuxLayers
from outrider.models.model_config import read_config
from outrider.ops.tree.chain import single_node
from outrider.step.arena import Arena
from outrider.step.buckets import Buckets, largest_shape
from outrider.step.fill_plan import fill, resolve_lengths
from outrider.step.plan import StepPlan
from outrider.step.planner import NoDraftBinder, Planner
from outrider.step.row_table import RowTable
from outrider.step.shape import ChunkShape, SamplingFlags
from outrider.wire.draft_budget import PLAIN
from outrider.wire.scheduled_batch import NO_DECODES, PageGrant, ScheduledBatch, ScheduledChunk

MAX_TEXT_TOKENS = 512  # longer texts are cut: all logits of a text are in memory at a time
PAGE_SIZE = 16

_CPU = torch.device("cpu")
_ROW = 1  # the only row; row 0 is padding


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """The perplexity of all texts together with weights of one type."""

    dtype: Dtype
    perplexity: float
    num_tokens: int  # that were predicted

    def change_from(self, other: "Perplexity") -> float:
        """The relative change; above 0 is worse."""
        return self.perplexity / other.perplexity - 1.0


def encode_texts(folder: Path, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Token ids of the texts without a chat template; texts of a single token are left out."""
    limit = min(MAX_TEXT_TOKENS, read_config(folder).max_context)
    tokenizer = load_tokenizer(folder)
    encoded = (tuple(tokenizer.encode(text, add_special=True)[:limit]) for text in texts)
    usable = [tokens for tokens in encoded if len(tokens) > 1]
    if not usable:
        raise ConfigError("no text has two tokens or more; give longer ones with --prompts")
    return usable


def measure_perplexity(
    folder: Path,
    dtype: Dtype,
    texts: Sequence[tuple[int, ...]],
    note: Callable[[str], None],
) -> Perplexity:
    """Load the model with weights of this type, score every text, and free it again."""
    longest = max(map(len, texts))
    decoder = load_decoder(folder, dtype=dtype, device=_CPU, max_context=longest)
    scorer = Scorer(decoder, longest)
    total = 0.0
    for tokens in texts:
        note(f"perplexity {dtype}")
        total += scorer.surprise(tokens)
    del scorer, decoder
    gc.collect()
    num_tokens = sum(map(len, texts)) - len(texts)
    return Perplexity(dtype=dtype, perplexity=math.exp(total / num_tokens), num_tokens=num_tokens)


class Scorer:
    """Owns a decoder and the cache of one text, which the next text overwrites."""

    def __init__(self, model: Decoder, max_tokens: int) -> None:
        num_pages = -(-max_tokens // PAGE_SIZE)
        layout = _kv_layout(model)
        self._model = model
        self._kv = KVPool(layout, num_pages=num_pages + 1, device=_CPU)
        self._table = RowTable(max_rows=1, max_pages=num_pages, device=_CPU)
        own_pages = tuple(range(1, num_pages + 1))
        self._table.grant((PageGrant(row=_ROW, first=0, pages=own_pages),))
        self.attention = ReferenceAttention(page_size=PAGE_SIZE, dtype=layout.dtype)
        buckets = Buckets(page_size=PAGE_SIZE)
        self._planner = Planner(
            arena=Arena(_CPU),
            attention=self.attention,
            draft=NoDraftBinder(),
            table=self._table,
            buckets=buckets,
            largest=largest_shape(
                rows=1,
                tree=PLAIN,
                chunk=ChunkShape(rows=1, tokens=max_tokens, width=max_tokens),
                pages=num_pages,
                buckets=buckets,
            ),
        )

    @torch.inference_mode()
    def surprise(self, tokens: tuple[int, ...]) -> float:
        """The negative log-likelihood of a text after its first token, in nats."""
        plan = self.plan(tokens)
        hidden_states = self._model.hidden_states(
            plan, self._kv, self.attention
        )  # [tokens, hidden]
        logits = self._model.logits(hidden_states[:-1])  # [tokens - 1, vocab]
        return float(F.cross_entropy(logits, torch.tensor(tokens[1:]), reduction="sum"))

    def aux_hidden_states(
        self, tokens: tuple[int, ...], aux_layers: AuxLayers
    ) -> torch.Tensor:  # [tokens, aux]
        """The states of a text that a drafter reads."""
        output = self._model.forward(self.plan(tokens), self._kv, self.attention, aux_layers)
        return output.aux_hidden_states

    def plan(self, tokens: tuple[int, ...]) -> StepPlan:
        """One step with the whole text as one chunk."""
        chunk = ScheduledChunk(row=_ROW, start=0, tokens=tokens, follower=-1)
        batch = ScheduledBatch(
            step=0, admissions=(), grants=(), chunks=(chunk,), decodes=NO_DECODES
        )
        plan = self._planner.plan(batch, sampling_flags=SamplingFlags())
        resolve_lengths(plan, self._table)
        tree = single_node(self._table.last_tokens[plan.decode.rows])
        fill(plan, tree, table=self._table, attention=self.attention, page_size=PAGE_SIZE)
        return plan


def _kv_layout(model: Decoder) -> KVLayout:
    attention = model.config.attention
    if model.config.recurrence.layers:
        raise ConfigError(
            f"texts are not scored by models with row state yet, as {model.config.family.name} "
            "does; use a model whose layers all attend"
        )
    return KVLayout(
        layers=model.config.num_layers,
        vectors=attention.vectors,
        width=attention.width,
        page_size=PAGE_SIZE,
        dtype=model.dtype,
    )
