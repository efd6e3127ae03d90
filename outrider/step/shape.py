"""The static facts of a step. Steps of equal shape run the same operations at equal addresses."""

from dataclasses import dataclass, replace

from outrider.wire.draft_budget import Budget

# Which hidden states a step reports, in order: a step with more serves rows that want fewer.
NO_STATES = 0
SAMPLED_STATES = 1  # of accepted nodes and chunk ends: those that chose a token
ALL_STATES = 2  # of accepted nodes and of every chunk token


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """Which parts of sampling, and of the target, the rows of a step need; others are not run.

    Leaving a part out never changes the token of a row that does not use it.
    """

    noise: bool = False
    filters: bool = False
    penalties: bool = False
    bias: bool = False  # logit bias and bans
    allowed: bool = False  # rows that may choose few tokens only
    bad_words: bool = False
    thinking: bool = False  # budgets of reasoning
    grammar: bool = False  # masks, which the host computes
    logprobs: bool = False
    top_logprobs: int = 0
    named_logprobs: int = 0  # tokens that requests name
    scores: bool = False  # log-probabilities of the prompt's own tokens
    trees: bool = False  # draft trees are copied to the host
    hidden_states: int = NO_STATES  # which of them are copied to the host
    predictions: bool = False  # the drafter reads predicted outputs
    adapters: bool = False  # rows run through LoRA adapters

    @property
    def is_plain(self) -> bool:
        """Whether a token is the best of logits and noise, and nothing else reads the logits."""
        edits = self.filters or self.bias or self.allowed or self.grammar or self.needs_path
        return not (edits or self.logprobs or self.scores)

    @property
    def needs_path(self) -> bool:
        """Whether a choice depends on tokens emitted or drafted before it, besides the logits."""
        return self.penalties or self.bad_words or self.thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkShape:
    """The ragged part of a step: prompt chunks, causal among themselves."""

    rows: int
    tokens: int  # all chunks together
    width: int  # the longest chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """Sizes after padding. Query tokens are flat: those of decode rows, then those of chunks.

    Every row has a query token for each of its nodes, or rows with small trees leave theirs to
    others: then the step is ragged, and absent nodes do not run.
    """

    rows: int  # decode rows
    tree: Budget  # the largest draft tree; each of its nodes is a query token
    chunk: ChunkShape
    pages: int  # page-table columns that attention may read
    sampling_flags: SamplingFlags
    has_embeds: bool = False  # embeddings stand in place of some chunk tokens
    has_axes: bool = False  # rotary positions of some chunk tokens are not their positions
    ragged: int = 0  # query tokens that the decode rows share; 0: every row has one for each node

    def __post_init__(self) -> None:
        assert not self.ragged or self.rows <= self.ragged < self.num_nodes, "node 0 always runs"

    @property
    def nodes(self) -> int:
        return self.tree.nodes

    def for_drafts(self) -> "StepShape":
        """The shape for the plans of a draft model: only the target has embeddings.

        In place of an embedding a draft model reads the id that stands there.
        """
        return replace(self, has_embeds=False, has_axes=False)

    def without_adapters(self) -> "StepShape":
        """The shape for the plans of a model that takes none."""
        return replace(self, sampling_flags=replace(self.sampling_flags, adapters=False))

    @property
    def num_nodes(self) -> int:
        """Nodes of all decode rows, absent ones included."""
        return self.rows * self.nodes

    @property
    def num_decode_query(self) -> int:
        return self.ragged or self.num_nodes

    @property
    def num_query(self) -> int:
        return self.num_decode_query + self.chunk.tokens

    @property
    def num_sampled(self) -> int:
        """Query tokens whose logits are needed: every node, and the last token of each chunk."""
        return self.num_decode_query + self.chunk.rows

    @property
    def num_reported(self) -> tuple[int, int]:
        """Query tokens with log-probabilities: those sampled, and those of scored prompts."""
        sampled = self.num_sampled if self.sampling_flags.logprobs else 0
        return sampled, self.chunk.tokens if self.sampling_flags.scores else 0

    @property
    def num_states(self) -> tuple[int, int]:
        """Hidden states that are reported: on paths of decode rows, and of chunks."""
        mode, chunk = self.sampling_flags.hidden_states, self.chunk
        if mode == NO_STATES:
            return 0, 0
        of_chunks = chunk.tokens if mode == ALL_STATES else chunk.rows
        return self.rows * self.tree.most_emitted, of_chunks
