"""A decoder on a small device of its own: one call is one step of it."""

import random
from dataclasses import dataclass

import torch

from outrider.distributed.rank_group import ONE_RANK
from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.models.decoder import Decoder
from outrider.models.decoder_loader import load_decoder
from outrider.ops.tree.chain import single_node
from outrider.step.fill_plan import fill, resolve_lengths
from support.steps import NO_FLAGS, SmallDevice, batch_of, small_device
from support.tiny import VOCAB

CPU = torch.device("cpu")
PAGE_SIZE = 4


@dataclass
class Harness:
    """A decoder with its own pool and planner; `run` is one step of it."""

    decoder: Decoder
    device: SmallDevice
    pool: KVPool

    def run(self, decodes, chunks, execute=lambda program, plan: program(plan)):
        """Logits of every query token; decodes are {row: (length, token)}."""
        table = self.device.table
        for row, (length, token) in decodes.items():
            table.lengths[row], table.last_tokens[row] = length, token
        lengths = {row: length for row, (length, _) in decodes.items()}
        batch = batch_of(lengths, chunks, nodes=1)
        plan = self.device.planner.plan(batch, sampling_flags=NO_FLAGS)
        with torch.inference_mode():
            return execute(self.program, plan)

    def run_tree(self, row, length, tree):
        """Logits of every node of a tree after the cached text of a row."""
        self.device.table.lengths[row] = length
        nodes = tree.tokens.shape[1]
        batch = batch_of({row: length}, {}, nodes=nodes, topk=nodes)
        plan = self.device.planner.plan(batch, sampling_flags=NO_FLAGS)
        with torch.inference_mode():
            return self.program(plan, tree)

    def program(self, plan, tree=None):
        device = self.device
        resolve_lengths(plan, device.table)
        if tree is None:
            tree = single_node(device.table.last_tokens[plan.decode.rows])
        fill(plan, tree, table=device.table, attention=device.attention, page_size=device.page_size)
        hidden_states = self.decoder.hidden_states(plan, self.pool, device.attention)
        return self.decoder.logits(hidden_states)


def harness_of(
    folder,
    dtype="float32",
    *,
    pad=1,
    nodes=1,
    ranks=ONE_RANK,
    quantization="none",
    max_context=None,
):
    decoder = load_decoder(
        folder,
        dtype=dtype,
        device=CPU,
        ranks=ranks,
        quantization=quantization,
        max_context=max_context,
    )
    device = small_device(random.Random(0), page_size=PAGE_SIZE, nodes=nodes, pad=pad)
    attention = decoder.share.attention
    layout = KVLayout(
        layers=decoder.config.num_layers,
        vectors=attention.vectors,
        width=attention.width,
        page_size=PAGE_SIZE,
        dtype=decoder.dtype,
    )
    return Harness(decoder, device, KVPool(layout, num_pages=device.num_pages, device=CPU))


def prompt(length, seed=0):
    return random.Random(seed).choices(range(VOCAB), k=length)


def expected_logits(model, tokens):
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]
