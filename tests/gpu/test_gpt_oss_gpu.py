"""On a GPU, a gpt-oss whose experts keep their MXFP4 codes gives the tokens of transformers."""

import pytest
import torch
from support.gpt_oss import PackedModels
from support.styled_models import mismatches


@pytest.mark.parametrize("executor", ["eager", "graph"])
def test_tokens_are_those_of_the_reference_decoder(tmp_path, executor):
    torch.backends.cuda.matmul.allow_tf32 = False
    case = {"drafter": "ngram", "tree": "tree", "is_hit": 1, "seed": 2}
    models = PackedModels(tmp_path, "cuda")
    assert not mismatches(models, **case, device="cuda", executor=executor)
