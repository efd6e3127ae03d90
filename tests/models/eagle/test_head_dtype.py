"""The type of a head's weights beside its target's: drafts are guesses, so 8 bits will do."""

import pytest
import torch
from support.medusa_models import MedusaVariant, write_medusa

from outrider import LLM, SamplingParams
from outrider.config.draft_config import DraftConfig
from outrider.config.draft_dialects import choose_dialect
from outrider.errors import ConfigError
from outrider.runtime.load_draft import fit_draft, load_draft


def logits(target, folder, states, **dtypes):
    config = fit_draft(DraftConfig(drafter=str(folder), **dtypes), target.folder)
    places = {"target": target.decoder, "target_folder": target.folder, "max_context": 64}
    kind = load_draft(config, **places, dtype="float32", arithmetic="fast")
    return kind.model.logits(states, 0)


def test_a_head_has_8_bits_beside_float32_unless_the_type_of_the_target_is_requested(
    target, tmp_path
):
    write_medusa(tmp_path, target.config, MedusaVariant(has_bias=False))
    states = torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(0))
    whole = logits(target, tmp_path, states, dtype="target")
    rounded = logits(target, tmp_path, states)
    assert 0 < (whole - rounded).abs().max() < 0.1 * whole.abs().max()


def test_the_type_of_a_head_changes_no_token(target, tmp_path):
    write_medusa(tmp_path, target.config, MedusaVariant())
    params = SamplingParams(temperature=0, max_tokens=12, detokenize=False)

    def answer(**draft):
        llm = LLM(target.folder, dtype="float32", device="cpu", check_draft=False, **draft)
        (output,) = llm.generate([[3, 4, 5]], params, use_tqdm=False)
        return output.outputs[0].token_ids

    plain = answer(draft="none")
    assert plain == answer(draft=tmp_path) == answer(draft=tmp_path, draft_dtype="target")


def test_the_type_goes_with_the_flags_of_every_dialect_and_others_are_refused():
    own = DraftConfig(dtype="target")
    vllm = {"model": "x", "num_speculative_tokens": 2}
    assert choose_dialect(own, vllm=vllm, sglang={}).dtype == "target"
    with pytest.raises(ConfigError, match="must be auto or target, got 'int4'"):
        LLM("missing", draft_dtype="int4")
