"""Device tables of sampling parameters, one entry per row. Row 0 is padding and greedy."""

import math
from collections.abc import Sequence

import torch

from outrider.ops.sampling.bad_words import latest_tokens
from outrider.ops.sampling.sampling_columns import (
    EditTables,
    FilterTables,
    PenaltyTables,
    RowNoise,
)
from outrider.sampling.restriction_rows import (
    clear_thinking_,
    clear_words_,
    new_thinking_tables,
    new_word_tables,
    write_allowed_,
    write_thinking_,
    write_words_,
)
from outrider.sampling.sampling_flags import has_ban
from outrider.step.host_copy import upload
from outrider.wire.row_sampling import MAX_BANNED, MAX_BIAS, MAX_NAMED, RowSampling
from outrider.wire.scheduled_batch import RowAdmission

_FOREVER = 2**63 - 1  # a position that no token reaches


class SamplingTable:
    """Owns the sampling parameters of the rows' requests, and what they have emitted so far."""

    def __init__(self, *, rows: int, vocab: int, device: torch.device) -> None:
        self.vocab = vocab
        self._device = device
        self._integers = torch.zeros((rows, 2), dtype=torch.int64, device=device)
        self.seed, top_k = self._integers.unbind(1)  # [rows] each
        self._reals = torch.zeros((rows, 6), dtype=torch.float32, device=device)
        self.temperature, top_p, log_min_p = self._reals[:, :3].unbind(1)  # [rows] each
        repetition, presence, frequency = self._reals[:, 3:].unbind(1)
        self.filters = FilterTables(
            temperature=self.temperature, top_p=top_p, log_min_p=log_min_p, top_k=top_k
        )
        self.penalties = PenaltyTables(
            output_counts=torch.zeros((rows, vocab), dtype=torch.int32, device=device),
            prompt_seen=torch.zeros((rows, vocab), dtype=torch.bool, device=device),
            repetition=repetition,
            presence=presence,
            frequency=frequency,
        )
        # Bias and bans; `until` is 0 in unused entries.
        edits = (rows, MAX_BIAS + MAX_BANNED)
        self.edits = EditTables(
            tokens=torch.zeros(edits, dtype=torch.int64, device=device),
            values=torch.zeros(edits, dtype=torch.float32, device=device),
            until=torch.zeros(edits, dtype=torch.int64, device=device),
        )
        self.allowed = torch.full(
            (rows, -(-vocab // 32)), -1, dtype=torch.int32, device=device
        )  # bit t % 32 of word t // 32 allows token t
        self.bad_words = new_word_tables(rows, device)
        self.thinking = new_thinking_tables(rows, device)
        self.named_tokens = torch.zeros((rows, MAX_NAMED), dtype=torch.int64, device=device)
        greedy = RowSampling(seed=0, temperature=0.0)
        self.admit([RowAdmission(row=0, sampling=greedy, prompt=(), output=())])

    def is_sampled(self, rows: torch.Tensor) -> torch.Tensor:  # [n] -> [n] int64
        """1 for rows that draw their tokens, 0 for greedy ones."""
        return (self.temperature.index_select(0, rows) > 0).long()

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Give rows to new requests; nothing of the former ones remains."""
        if not admissions:
            return
        rows = self._upload([admission.row for admission in admissions], torch.int64)
        samplings = [admission.sampling for admission in admissions]
        integers = [_integers(sampling, self.vocab) for sampling in samplings]
        self._integers.index_copy_(0, rows, self._upload(integers, torch.int64))
        reals = [_reals(sampling) for sampling in samplings]
        self._reals.index_copy_(0, rows, self._upload(reals, torch.float32))
        for tensor in (self.edits.until, self.output_counts, self.penalties.prompt_seen):
            tensor.index_fill_(0, rows, 0)
        self.allowed.index_fill_(0, rows, -1)
        clear_words_(self.bad_words, rows)
        clear_thinking_(self.thinking, rows)
        for admission in admissions:
            self._write_edits(admission.row, admission.sampling)
            self._write_named(admission.row, admission.sampling.logprobs.named)
            write_allowed_(self.allowed[admission.row], admission.sampling.restrictions)
            write_words_(self.bad_words, admission)
            write_thinking_(self.thinking, admission)
            self._write_history(admission)

    @property
    def output_counts(self) -> torch.Tensor:  # [rows, vocab] int32
        """How often each row has emitted each token."""
        return self.penalties.output_counts

    def noise(
        self,
        rows: torch.Tensor,  # [n] int64
        positions: torch.Tensor,  # [n] int64
    ) -> RowNoise:
        """The noise of `n` choices, each of a row at a position."""
        return RowNoise(
            seeds=self.seed, temperatures=self.temperature, rows=rows, positions=positions
        )

    def record(
        self,
        rows: torch.Tensor,  # [n] int64
        tokens: torch.Tensor,  # [n, k] int64
        valid: torch.Tensor,  # [n, k] bool
    ) -> None:
        """Count emitted tokens towards the penalties of their rows."""
        flat = torch.where(valid, rows[:, None] * self.vocab + tokens, 0)
        self.output_counts.view(-1).scatter_add_(0, flat.flatten(), valid.flatten().int())

    def record_latest(
        self,
        rows: torch.Tensor,  # [n] int64
        tokens: torch.Tensor,  # [n, k] int64
        valid: torch.Tensor,  # [n, k] bool
    ) -> None:
        """Add emitted tokens to the last ones, for bad words."""
        outputs = self.bad_words.outputs
        new = latest_tokens(outputs.index_select(0, rows), torch.where(valid, tokens, -1))
        outputs.index_copy_(0, rows, new)

    def record_thinking(
        self,
        rows: torch.Tensor,  # [n] int64
        tokens: torch.Tensor,  # [n, k] int64
        valid: torch.Tensor,  # [n, k] bool
    ) -> None:
        """Note whether the emitted tokens begin or end the reasoning of their rows."""
        thinking = self.thinking
        for tags, flags in (
            (thinking.opens, thinking.has_begun),
            (thinking.closes, thinking.has_ended),
        ):
            is_tag = (tokens == tags.index_select(0, rows)[:, None]) & valid
            flags.index_copy_(0, rows, flags.index_select(0, rows) | is_tag.any(1))

    def _write_edits(self, row: int, sampling: RowSampling) -> None:
        banned = sampling.ban.tokens if has_ban(sampling) else ()
        tokens = [token for token, _ in sampling.bias] + list(banned)
        if not tokens:
            return
        assert len(sampling.bias) <= MAX_BIAS, "the API rejects a longer bias"
        assert len(banned) <= MAX_BANNED, "the API rejects more stop tokens"
        num_banned = len(banned)
        values = [value for _, value in sampling.bias] + [-math.inf] * num_banned
        until = [_FOREVER] * len(sampling.bias) + [sampling.ban.before] * num_banned
        self.edits.tokens[row, : len(tokens)] = self._upload(tokens, torch.int64)
        self.edits.values[row, : len(tokens)] = self._upload(values, torch.float32)
        self.edits.until[row, : len(tokens)] = self._upload(until, torch.int64)

    def _write_named(self, row: int, tokens: tuple[int, ...]) -> None:
        """Entries that a former request named beyond these stay; they are not reported."""
        assert len(tokens) <= MAX_NAMED, "the API rejects more"
        if tokens:
            self.named_tokens[row, : len(tokens)] = self._upload(tokens, torch.int64)

    def _write_history(self, admission: RowAdmission) -> None:
        if admission.seen_tokens:
            prompt = self._upload(admission.seen_tokens, torch.int64)
            self.penalties.prompt_seen[admission.row].index_fill_(0, prompt, True)
        if admission.output:
            output = self._upload(admission.output, torch.int64)
            ones = torch.ones_like(output, dtype=torch.int32)
            self.output_counts[admission.row].scatter_add_(0, output, ones)

    def _upload(self, values: Sequence[object], dtype: torch.dtype) -> torch.Tensor:
        return upload(values, dtype, self._device)


def _integers(sampling: RowSampling, vocab: int) -> tuple[int, int]:
    top_k = sampling.filters.top_k
    return sampling.seed, min(top_k, vocab) if top_k > 0 else vocab


def _reals(sampling: RowSampling) -> tuple[float, ...]:
    """Temperature, filters and penalties, in the order of the columns."""
    filters, penalties = sampling.filters, sampling.penalties
    log_min_p = math.log(filters.min_p) if filters.min_p > 0 else -math.inf
    filtering = (sampling.temperature, filters.top_p, log_min_p)
    return (*filtering, penalties.repetition, penalties.presence, penalties.frequency)
