"""Random sampling parameters and logits for tests that compare kernels with the torch reference."""

import random
from dataclasses import dataclass

import torch

from outrider.sampling.sampler import sample_tokens
from outrider.sampling.sampling_table import SamplingTable
from outrider.step.shape import SamplingFlags
from outrider.wire.row_sampling import Ban, Filters, Penalties, RowSampling
from outrider.wire.scheduled_batch import RowAdmission

EVERYTHING = SamplingFlags(noise=True, filters=True, penalties=True, bias=True)
TEMPERATURES = [0.0, 0.3, 0.7, 1.0, 1.7]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The arguments of `choose_tokens`, without the flags."""

    logits: torch.Tensor
    table: SamplingTable
    rows: torch.Tensor
    positions: torch.Tensor
    path: torch.Tensor

    def arguments(self, sampling_flags):
        return self.logits, self.table, self.rows, self.positions, self.path, sampling_flags

    def reference(self, sampling_flags):
        """The tokens that the torch reference chooses, of float32 copies of the same logits."""
        logits = self.logits.float()
        logits = logits.clone() if logits is self.logits else logits
        return sample_tokens(
            logits, self.table, self.rows, self.positions, self.path, sampling_flags
        ).tokens

    def to(self, device, samplings):
        """The same on another device."""
        moved = (self.logits, self.rows, self.positions, self.path)
        logits, rows, positions, path = (tensor.to(device) for tensor in moved)
        table = table_of(samplings, vocab=self.table.vocab, device=device)
        return Choices(logits=logits, table=table, rows=rows, positions=positions, path=path)


def random_filters(rng, vocab):
    return Filters(
        top_k=rng.choice([0, 0, 1, 2, 5, 50, max(vocab // 3, 1), vocab]),
        top_p=rng.choice([1.0, 1.0, 1e-9, 0.3, 0.9, 0.95, 0.999]),
        min_p=rng.choice([0.0, 0.0, 0.05, 0.5, 1.0]),
    )


def random_sampling(rng, vocab):
    """Sampling parameters that use any part of logits processing, or none."""
    some = [rng.randrange(vocab) for _ in range(6)]
    penalties = Penalties(
        repetition=rng.choice([1.0, 1.3, 0.8]),
        presence=rng.choice([0.0, 0.4, -0.6]),
        frequency=rng.choice([0.0, 0.25, -0.1]),
    )
    bias = {token: rng.uniform(-4, 4) for token in some[:4]}
    return RowSampling(
        seed=rng.randrange(2**63),
        temperature=rng.choice(TEMPERATURES),
        filters=random_filters(rng, vocab),
        penalties=rng.choice([Penalties(), penalties]),
        bias=rng.choice([(), tuple(bias.items())]),
        # some are biased as well, and one is banned twice
        ban=rng.choice([Ban(), Ban(before=rng.choice([10, 90]), tokens=(*some[3:], some[3]))]),
    )


def table_of(samplings, *, vocab, device="cpu"):
    """Rows 1, 2, ... with these sampling parameters and a history each."""
    table = SamplingTable(rows=len(samplings) + 1, vocab=vocab, device=torch.device(device))
    admissions = []
    for row, sampling in enumerate(samplings, start=1):
        rng = random.Random(row)
        prompt, output = (tuple(rng.randrange(vocab) for _ in range(9)) for _ in range(2))
        admissions.append(
            RowAdmission(row=row, sampling=sampling, prompt=prompt, output=output + output[:3])
        )
    table.admit(admissions)
    return table


def random_logits(seed, n, vocab, dtype=torch.float32):
    """Flat, peaked and tied rows in turn."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, vocab, generator=generator)
    logits *= torch.tensor([0.5, 3.0, 8.0, 2.0])[torch.arange(n) % 4, None]
    logits[3::4] = logits[3::4].round()  # many ties, zeros of both signs among them
    return logits.to(dtype)


def random_choices(seed, samplings, *, vocab, depth=3, dtype=torch.float32):
    """One choice of each row, in a random order of rows."""
    generator = torch.Generator().manual_seed(seed)
    n = len(samplings)
    path = torch.randint(-1, vocab, (n, depth), generator=generator)
    path[: n // 2, 1:] = path[: n // 2, :1]  # a token may lie on a path several times
    return Choices(
        logits=random_logits(seed, n, vocab, dtype),
        table=table_of(samplings, vocab=vocab),
        rows=torch.randperm(n, generator=generator) + 1,
        positions=torch.randint(0, 100, (n,), generator=generator),
        path=path,
    )
