"""How the tokens of one row are chosen. Complete values: nothing here is optional."""

from dataclasses import dataclass

from outrider.wire.grammar_spec import NO_GRAMMAR, Grammar
from outrider.wire.hidden_states import RowStatesMode

# Room per row in the device tables; a request that needs more is refused.
MAX_BIAS = 1024
MAX_BANNED = 128
MAX_NAMED = 128
MAX_BAD_WORDS = 128
MAX_PREDICTION = 8192  # tokens of a predicted output that drafts come from
MAX_BAD_WORD_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which tokens may be chosen at all, by rank or probability. The defaults keep every token."""

    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Penalties of tokens that occurred before. The defaults change nothing."""

    repetition: float = 1.0  # over prompt and output; divides positive logits, multiplies negative
    presence: float = 0.0  # subtracted once per token seen in the output
    frequency: float = 0.0  # subtracted per occurrence in the output


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """Tokens that must not be chosen before an absolute position (used for min_tokens).

    The ban does not apply where a grammar allows no other token.
    """

    before: int = 0
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """From which absolute position on reasoning must end. The defaults mean no budget."""

    opens: int = -1  # the token that begins reasoning
    closes: int = -1  # the token that ends it
    is_open: bool = False  # whether the output begins inside reasoning
    until: int = 0

    @property
    def is_wanted(self) -> bool:
        return self.closes >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """Tokens that may be chosen, and sequences that may not. The defaults allow everything."""

    allowed: tuple[int, ...] = ()  # the only tokens that may be chosen; empty allows all
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that must not be in the output
    thinking: ThinkingBudget = ThinkingBudget()

    @property
    def depends_on_output(self) -> bool:
        """Whether tokens that were emitted before decide what may follow."""
        return bool(self.bad_words) or self.thinking.is_wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """From which position on the prompt tokens are scored, each given the tokens before it."""

    is_wanted: bool = False
    first: int = 1  # position 0 has no tokens before it
    top: int = 0  # as in `LogprobsWanted`


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsWanted:
    """Which log-probabilities to report per emitted token, before any logits processing."""

    chosen: bool = False
    top: int = 0  # how many of the most likely tokens to report besides the chosen one
    named: tuple[int, ...] = ()  # tokens that are reported at every position, the prompt's too
    prompt: PromptLogprobs = PromptLogprobs()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSampling:
    """Sampling of one row: the token at position i is a function of (logits, seed, i)."""

    seed: int  # 0 <= seed < 2**63
    temperature: float = 1.0  # 0 chooses the most likely token, without noise
    filters: Filters = Filters()
    penalties: Penalties = Penalties()
    bias: tuple[tuple[int, float], ...] = ()  # (token, added to its logit)
    ban: Ban = Ban()
    restrictions: Restrictions = Restrictions()
    logprobs: LogprobsWanted = LogprobsWanted()
    trace: bool = False  # report the tree of every round; the tokens do not depend on it
    hidden_states: RowStatesMode = "none"  # reported beside the tokens, as `logprobs` are
    grammar: Grammar = NO_GRAMMAR
    # Text that the output is expected to resemble: the n-gram drafter drafts from it. The tokens do
    # not depend on it.
    prediction: tuple[int, ...] = ()
