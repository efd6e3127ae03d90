"""The parts of an EAGLE-3 head, which are compiled functions where they can be."""

import torch

from outrider.models.eagle.eagle3 import Eagle3Norms, Eagle3Parts
from outrider.models.eagle.head_builder import HeadBuilder
from outrider.models.eagle.inspect_head import open_head
from support.heads import LAYER, write_head

TARGET_WIDTH = 32


def head_of(target, folder, dtype="int8", **flags):
    """The facts and the parts of a head."""
    write_head(folder, target.config, **flags)
    opened, facts = open_head(folder, target.config, target.folder), target.load(folder).facts
    builder = HeadBuilder(
        opened.report.config,
        opened.tensors,
        target.decoder,
        dtype=dtype,
        device=torch.device("cpu"),
        arithmetic="fast",
    )
    return facts, Eagle3Parts(
        embedding=builder.embedding(),
        project=builder.project(),
        layer=builder.layer(0),
        norms=Eagle3Norms(
            embedding=builder.norm(LAYER + "input_layernorm.weight"),
            state=builder.norm(LAYER + "hidden_norm.weight"),
            output=builder.norm("norm.weight"),
            is_residual_normed=flags.get("norm_before_residual", False),
            is_state_normed=flags.get("norm_output", False),
        ),
        score=builder.score(),
        target_ids=builder.target_ids(),
    )
