"""The reference decoder: whole recompute, one request, numpy in float64, no engine code.

It follows the definition of sampling: penalties, bias, bans, temperature, top-k, top-p,
min-p, then argmax of logits plus Gumbel noise drawn from a hash of (seed, position, token).
"""

from dataclasses import dataclass

import numpy as np
import torch

from outrider.wire.row_sampling import RowSampling

U32, U64 = 2**32 - 1, 2**64 - 1


@dataclass
class Answer:
    tokens: list[int]
    logprobs: list[float]  # of the chosen tokens under the model's own distribution


def decode(model, prompt, sampling: RowSampling, *, max_tokens: int, stop_ids=()) -> Answer:
    """The answer to a prompt; `model` is a transformers model."""
    tokens, logprobs = list(prompt), []
    for _ in range(max_tokens):
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, -1].double().numpy()
        token = choose(logits, sampling, tokens, len(prompt))
        logprobs.append(float(logits[token] - _logsumexp(logits)))
        tokens.append(token)
        if token in stop_ids:
            break
    return Answer(tokens=tokens[len(prompt) :], logprobs=logprobs)


def choose(logits, sampling: RowSampling, tokens: list[int], num_prompt: int) -> int:
    """The token that follows `tokens`."""
    position = len(tokens)
    z = penalised(restricted(logits.copy(), sampling), sampling, tokens, num_prompt)
    for token, value in sampling.bias:
        z[token] += value
    if position < sampling.ban.before:
        z[list(sampling.ban.tokens)] = -np.inf
    for word in sampling.restrictions.bad_words:
        output = tokens[num_prompt:]
        if (
            tuple(output[len(output) - len(word) + 1 :]) == word[:-1]
            and len(output) >= len(word) - 1
        ):
            z[word[-1]] = -np.inf
    thinking, output = sampling.restrictions.thinking, tokens[num_prompt:]
    has_begun = thinking.is_open or thinking.opens in output
    is_inside = thinking.is_wanted and has_begun and thinking.closes not in output
    if is_inside and position >= thinking.until:
        return thinking.closes
    if sampling.temperature == 0:
        return int(z.argmax())
    z = filtered(z / sampling.temperature, sampling)
    return int((z + gumbel(sampling.seed, position, len(z))).argmax())


def restricted(z, sampling):
    """Only allowed tokens keep their logits."""
    allowed = sampling.restrictions.allowed
    if allowed:
        z[[token for token in range(len(z)) if token not in allowed]] = -np.inf
    return z


def penalised(z, sampling, tokens, num_prompt):
    penalties, output = sampling.penalties, tokens[num_prompt:]
    for token in set(tokens):
        z[token] = (
            z[token] / penalties.repetition if z[token] > 0 else z[token] * penalties.repetition
        )
    for token in set(output):
        z[token] -= penalties.presence + penalties.frequency * output.count(token)
    return z


def filtered(z, sampling):
    """Ties stay: a filter keeps all tokens that are as likely as the last one it keeps."""
    filters = sampling.filters
    if filters.top_k:
        kth = np.sort(z)[::-1][min(filters.top_k, len(z)) - 1]
        z = np.where(z >= kth, z, -np.inf)
    if filters.top_p < 1:
        descending = np.sort(z)[::-1]
        mass = np.cumsum(np.exp(descending - _logsumexp(z)))
        last = descending[min(int(np.searchsorted(mass, filters.top_p)), len(z) - 1)]
        z = np.where(z >= last, z, -np.inf)
    if filters.min_p > 0:
        z = np.where(z >= z.max() + np.log(filters.min_p), z, -np.inf)
    return z


def gumbel(seed: int, position: int, vocab: int):
    """Noise of every token, from arbitrary-precision integers and the library's own logarithm."""
    key = ((seed + 1) * 0x9E3779B97F4A7C15 + position) & U64
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        key = (key ^ (key >> 33)) * factor & U64
    key ^= key >> 33
    x = (np.arange(vocab, dtype=np.uint64) + np.uint64(key & U32)) & np.uint64(U32)
    x = _mixed(x, 16, 0x7FEB352D)
    x = _mixed(x, 15, 0x846CA68B)
    x = (x + np.uint64(key >> 32)) & np.uint64(U32)
    x = _mixed(x, 16, 0x85EBCA6B)
    x = _mixed(x, 13, 0xC2B2AE35)
    x ^= x >> np.uint64(16)
    in_tail = x >= 2**31
    h = (np.where(in_tail, U32 - x, x).astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(np.where(in_tail, -np.log(h), -np.log1p(-h)))


def _mixed(x, shift: int, factor: int):
    return (x ^ (x >> np.uint64(shift))) * np.uint64(factor) & np.uint64(U32)


def _logsumexp(z) -> float:
    return float(z.max() + np.log(np.exp(z - z.max()).sum()))
