"""The training form of heads and targets against the engine's form."""

import itertools
import random

import pytest
import torch
from support.heads import write_head
from support.modules import write_mimo
from support.steps import NO_FLAGS, batch_of, small_device
from support.tiny import FAMILIES, VOCAB, save_tiny
from support.training import DEVICE

from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.models.decoder_loader import load_decoder
from outrider.models.eagle.head_loader import load_head
from outrider.models.eagle.inspect_head import open_head
from outrider.ops.tree.chain import single_node
from outrider.step.fill_plan import fill, resolve_lengths
from outrider.train.packed_attention import DenseAttention, KeyValue, attend_packed
from outrider.train.packed_target import PackedTarget
from outrider.train.training_head import HeadInputs, TrainingHead

CPU = torch.device("cpu")
PAGE_SIZE = 4
DEPTH = 4
LENGTHS = (9, 13)  # of two documents in one sequence
TOLERANCE = 1e-4

LAYOUTS = {"eagle3": {}, "eagle3.1": {"fc_norm": True, "norm_output": True, "layers": (2, 1, 0)}}


class Paged:
    """A model with its own KV pages. Rows run as prompt chunks."""

    def __init__(self, *, num_layers, attention):
        layout = KVLayout(
            layers=num_layers,
            vectors=attention.vectors,
            width=attention.width,
            page_size=PAGE_SIZE,
            dtype=torch.float32,
        )
        self.device = small_device(random.Random(0), page_size=PAGE_SIZE, nodes=1)
        self.pool = KVPool(layout, num_pages=self.device.num_pages, device=CPU)

    def run(self, function, *, start, tokens):
        device = self.device
        plan = device.planner.plan(
            batch_of({}, {1: (start, tokens)}, nodes=1), sampling_flags=NO_FLAGS
        )
        resolve_lengths(plan, device.table)
        tree = single_node(device.table.last_tokens[plan.decode.rows])
        fill(plan, tree, table=device.table, attention=device.attention, page_size=PAGE_SIZE)
        return function(plan, self.pool, device.attention)


def engine_logits(decoder, head, tokens):
    """The engine's draft logits after a document, over `DEPTH` true tokens.

    Rows of the text read the target's states; each row after it reads the state of the row before.
    """
    config, text = decoder.config, tokens[: -DEPTH - 1]
    target = Paged(num_layers=config.num_layers, attention=config.attention)
    aux_hidden_states = target.run(
        lambda plan, kv, attention: (
            decoder.forward(plan, kv, attention, head.facts.aux_layers).aux_hidden_states
        ),
        start=0,
        tokens=text,
    )
    drafts, state, start, found = (
        Paged(num_layers=1, attention=head.facts.attention),
        head.project(aux_hidden_states),
        0,
        [],
    )
    for step in range(DEPTH):
        read = tokens[1 : len(text) + 1] if step == 0 else tokens[len(text) + step :][:1]
        state = drafts.run(
            lambda plan, kv, attention, before=state: head.forward(plan, before, kv, attention),
            start=start,
            tokens=read,
        )[-1:]
        found.append(head.logits(state)[0])
        start = len(text) + step
    return torch.stack(found)  # [depth, draft_vocab]


def packed_documents(texts):
    documents = torch.cat([torch.full((len(text),), i) for i, text in enumerate(texts)])[None]
    positions = torch.cat([torch.arange(len(text)) for text in texts])[None]
    return torch.tensor([list(itertools.chain(*texts))]), documents, positions


def unrolled(folder, target_folder, tokens, documents, positions):
    """Logits of every row at every depth: [depth, length, draft_vocab]."""
    target = PackedTarget(target_folder, DEVICE)
    opened = open_head(folder, target.config, target_folder)
    attention = DenseAttention(documents)
    states = target.forward(
        tokens, positions, attention, opened.report.config.aux.aux_layers.layers
    )
    inputs = HeadInputs(
        aux_hidden_states=states.aux_hidden_states,
        tokens=tokens,
        documents=documents,
        positions=positions,
        attention=attention,
    )
    head = TrainingHead(opened.report.config, DEVICE, embedding=target.embedding)
    normed = head.unroll(opened.tensors, inputs, depth=DEPTH)
    return torch.stack([each[0] @ opened.tensors["lm_head.weight"].T for each in normed])


def texts():
    draw = random.Random(5)
    return [draw.choices(range(VOCAB), k=length + DEPTH + 1) for length in LENGTHS]


@pytest.mark.parametrize("flags", LAYOUTS.values(), ids=LAYOUTS)
def test_the_training_form_and_the_engine_give_equal_logits_at_every_depth(
    flags, target_folder, tmp_path
):
    decoder = load_decoder(target_folder, dtype="float32", device=CPU)
    folder = write_head(tmp_path / "head", decoder.config, dialect="sglang", **flags)
    head = load_head(
        folder, target=decoder, target_folder=target_folder, dtype="float32", device=CPU
    )
    both = texts()
    with torch.inference_mode():
        ours = unrolled(folder, target_folder, *packed_documents(both))
        end = 0
        for text in both:
            end += len(text)
            anchor = end - DEPTH - 2  # the last row of the document with DEPTH + 1 tokens after it
            expected = engine_logits(decoder, head, text)
            assert (ours[:, anchor] - expected).abs().max() <= TOLERANCE


def test_a_row_does_not_depend_on_other_documents(target_folder, tmp_path):
    config = load_decoder(target_folder, dtype="float32", device=CPU).config
    folder = write_head(tmp_path / "head", config, dialect="sglang")
    first, second = texts()
    changed = [(token + 1) % VOCAB for token in first]
    with torch.inference_mode():
        one = unrolled(folder, target_folder, *packed_documents([first, second]))
        other = unrolled(folder, target_folder, *packed_documents([changed, second]))
        alone = unrolled(folder, target_folder, *packed_documents([second]))
    # Rows after these lack tokens to read and are never trained.
    border, last = len(first), len(second) - DEPTH - 1
    one_second, other_second = one[:, border:][:, :last], other[:, border:][:, :last]
    assert torch.equal(one_second, other_second)
    assert (one_second - alone[:, :last]).abs().max() <= TOLERANCE
    assert not torch.equal(one[:, :border], other[:, :border])


@pytest.mark.parametrize("family", [*FAMILIES, "mimo"])
def test_the_packed_target_and_the_engine_give_equal_hidden_states(family, tmp_path):
    if family == "mimo":  # its checkpoint has draft modules beside the layers
        write_mimo(tmp_path)
    else:
        save_tiny(family, tmp_path)
    decoder = load_decoder(tmp_path, dtype="float32", device=CPU)
    target = PackedTarget(tmp_path, DEVICE)
    tokens, documents, positions = packed_documents(texts())
    with torch.inference_mode():
        states = target.forward(tokens, positions, DenseAttention(documents), (0, 2))
        start = 0
        for text in texts():
            paged = Paged(num_layers=decoder.config.num_layers, attention=decoder.config.attention)
            hidden_states = paged.run(decoder.hidden_states, start=0, tokens=text)
            ours = states.hidden_states[0, start : start + len(text)]
            assert (ours - hidden_states).abs().max() <= 1e-3  # values reach tens
            start += len(text)
    assert states.aux_hidden_states.shape == (1, start, 2 * decoder.config.block.hidden)


def test_attention_to_a_rows_own_steps_is_one_softmax_over_all_keys():
    generator = torch.Generator().manual_seed(0)
    query, key, value, k1, v1, k2, v2 = torch.randn(7, 2, 3, 5, 4, generator=generator)
    documents = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, -1]])
    merged = attend_packed(
        DenseAttention(documents),
        query,
        KeyValue(key=key, value=value),
        [KeyValue(key=k1, value=v1), KeyValue(key=k2, value=v2)],
    )
    for b in range(2):
        for t in range(5):
            seen = [i for i in range(t + 1) if documents[b, i] == documents[b, t]]
            keys = torch.cat([key[b][:, seen], k1[b][:, [t]], k2[b][:, [t]]], 1)
            values = torch.cat([value[b][:, seen], v1[b][:, [t]], v2[b][:, [t]]], 1)
            scores = (keys @ query[b][:, t, :, None])[..., 0] * 0.5  # head_dim is 4
            expected = (scores.softmax(-1)[:, None] @ values)[:, 0]
            assert torch.allclose(merged[b, :, t], expected, atol=1e-5)
