"""Linear layers choose kernels by their rows: each number of many rows runs before its capture."""

import torch
from support.engines import NO_DRAFT, Shape, buckets_of, settings_of
from support.tiny import save_tiny

from outrider.models.decoder_loader import load_decoder
from outrider.runtime.build_runner import assemble_runner
from outrider.runtime.warmup import warm_up
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import PLAIN

CPU = torch.device("cpu")


def prompt_of(tokens, pages):
    return StepShape(
        rows=0,
        tree=PLAIN,
        chunk=ChunkShape(rows=1, tokens=tokens, width=tokens),
        pages=pages,
        sampling_flags=SamplingFlags(),
    )


def test_each_number_of_many_rows_runs_before_it_is_captured(tmp_path):
    save_tiny("llama", tmp_path)
    model = load_decoder(tmp_path, dtype="float32", device=CPU)
    shape = Shape(executor="tape", step_tokens=80, kv_tokens=256)
    runner, _ = assemble_runner(
        model, settings_of(shape), draft=NO_DRAFT, kv_tokens=256, buckets=buckets_of(shape)
    )
    shapes = [prompt_of(*sizes) for sizes in [(70, 20), (70, 24), (66, 20), (9, 20), (8, 20)]]
    before = runner.counts.eager
    warm_up(runner, shapes, CPU, lambda done, total: None)
    assert runner.counts.eager - before == 2  # of 70 tokens and of 66
