"""Prompts of embeddings: random ones, those of tokens, and what transformers answers to them."""

from dataclasses import replace

import pytest
import torch

from outrider.step.input_embeds import EmbedsBuffer
from outrider.wire.embedded_span import EmbeddedSpan
from support.engines import make_submission, run_all
from support.matrix import PROMPTS, SAMPLINGS

MAX_TOKENS = 9
GREEDY = SAMPLINGS["greedy"]


@pytest.fixture
def poisoned_embeds(monkeypatch):
    """Whatever a step does not stage is NaN."""
    stage = EmbedsBuffer.stage

    def poison(self, chunks, shape):
        self._arena._buffers["embeds"].fill_(float("nan"))
        stage(self, chunks, shape)

    monkeypatch.setattr(EmbedsBuffer, "stage", poison)


def table_of(theirs):
    """What the layers read of each token; some families scale what is stored."""
    embed = theirs.get_input_embeddings()
    with torch.inference_mode():
        return embed(torch.arange(embed.num_embeddings)).clone()


def random_embeds(theirs, count, seed):
    table = table_of(theirs)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, table.shape[1], generator=generator) * table.std()


def span_of(vectors, first=0):
    return EmbeddedSpan(first=first, width=vectors.shape[1], values=vectors.numpy().tobytes())


def embeds_submission(name, vectors, sampling=GREEDY, **more):
    """A prompt of embeddings alone."""
    plain = make_submission(name, [0] * len(vectors), sampling, max_tokens=MAX_TOKENS, **more)
    return replace(plain, embeds=(span_of(vectors),))


def embeds_reference(theirs, vectors, max_tokens=MAX_TOKENS):
    """Tokens and log-probabilities of greedy decoding after these embeddings."""
    tokens, logprobs, table = [], [], table_of(theirs)
    with torch.inference_mode():
        for _ in range(max_tokens):
            scores = theirs(inputs_embeds=vectors[None]).logits[0, -1].log_softmax(-1)
            tokens.append(int(scores.argmax()))
            logprobs.append(float(scores.max()))
            vectors = torch.cat([vectors, table[tokens[-1]][None]])
    return tokens, logprobs


def prompts_of(theirs):
    """Random ones, tokens, and tokens inside of random ones: all of them in one batch."""
    table, found = table_of(theirs), {}
    found["random"] = random_embeds(theirs, 14, seed=1)
    found["short"] = random_embeds(theirs, 1, seed=2)
    found["tokens"] = table[torch.tensor(PROMPTS[0])]
    found["mixed"] = torch.cat(
        [table[torch.tensor(PROMPTS[1][:5])], random_embeds(theirs, 6, seed=3), table[[7, 7]]]
    )
    return found


def embeds_mismatches(theirs, engine, *, page_size):
    """What differs from transformers, cold and with a cached prefix."""
    prompts, found = prompts_of(theirs), []
    for is_cached in (False, True):
        outputs = run_all(engine, [embeds_submission(*each) for each in prompts.items()])
        for name, vectors in prompts.items():
            tokens, logprobs = embeds_reference(theirs, vectors)
            if outputs[name].tokens != tokens:
                found.append(f"{name}: {outputs[name].tokens} instead of {tokens}")
            elif outputs[name].logprobs != pytest.approx(logprobs, abs=1e-4):
                found.append(f"{name}: logprobs {outputs[name].logprobs} instead of {logprobs}")
        if is_cached and page_size <= 4 and not outputs["random"].last.progress.cached:
            found.append("the prefix cache served nothing")
    return found
