"""Tiny random models of Qwen2.5-VL and Qwen3-VL, whose rotary positions have three axes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from support import recurrent
from support.pictures import edit_fields, edit_tensors
from support.recurrent_module import QwenModule
from support.tiny_sizes import SIZES
from support.tiny_vision import LETTERS, greedy, write_tokenizer

SPECIAL = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>' }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
IMAGE_TOKEN = len(LETTERS) + 3
PATCH, MERGE = 4, 2


@dataclass(frozen=True)
class TinyQwenVL:
    folder: Path
    theirs: PreTrainedModel
    images: Qwen2VLImageProcessorPil
    tokenizer: PreTrainedTokenizerFast

    def reference(self, text, images, *, max_tokens=9):
        """The token ids of the prompt, and the tokens that transformers adds to it."""
        return self.scored(text, images, max_tokens=max_tokens)[:2]

    def scored(self, text, images, *, max_tokens=9):
        """The same, and the log-probabilities of these tokens."""
        pieces, more = text.split(SPECIAL[0]), {}
        if images:
            cut = self.images(images=images, return_tensors="pt")
            counts = (cut["image_grid_thw"].prod(1) // MERGE**2).tolist()
            text = pieces[0] + "".join(
                SPECIAL[0] * count + piece for count, piece in zip(counts, pieces[1:], strict=True)
            )
            more = dict(cut)
        ids = torch.tensor([self.tokenizer(text, add_special_tokens=False)["input_ids"]])
        if images:
            more["mm_token_type_ids"] = (ids == IMAGE_TOKEN).int()
        self.theirs.model.rope_deltas = None
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}
        return greedy(self.theirs, inputs, max_tokens=max_tokens)


def make_tiny_qwen_vl(folder: Path, *, seed: int = 0) -> TinyQwenVL:
    return _write_tiny(folder, lambda: Qwen2_5_VLForConditionalGeneration(_qwen2_5_config()), seed)


def make_tiny_qwen3_vl(folder: Path, *, seed: int = 0) -> TinyQwenVL:
    """Images are added to hidden states after the first two of three layers, too."""
    return _write_tiny(folder, lambda: Qwen3VLForConditionalGeneration(_qwen3_config()), seed)


def make_tiny_qwen3_vl_moe(folder: Path, *, seed: int = 0) -> TinyQwenVL:
    """The same with experts in two of three layers."""
    return _write_tiny(
        folder, lambda: Qwen3VLMoeForConditionalGeneration(_qwen3_moe_config()), seed
    )


def make_tiny_qwen3_5(folder: Path, *, seed: int = 0) -> TinyQwenVL:
    """Most layers have recurrent states, half of a head is rotated, and there is a draft module."""
    make = Qwen3_5ForConditionalGeneration
    tiny = _write_tiny(folder, lambda: make(_qwen3_5_config()), seed)
    module = QwenModule(SimpleNamespace(model=tiny.theirs.model.language_model))
    edit_tensors(folder, lambda stored: stored | module.tensors())
    edit_fields(folder, {"mtp_num_hidden_layers": 1})
    return tiny


def _write_tiny(folder: Path, make: Callable[[], PreTrainedModel], seed: int) -> TinyQwenVL:
    tokenizer = write_tokenizer(folder, SPECIAL, TEMPLATE)
    torch.manual_seed(seed)
    theirs = make().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(0.0, 0.35)
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            if name.endswith("A_log"):  # states remember for a while
                parameter.uniform_(-4.0, -1.0)
    theirs.save_pretrained(folder)
    images = Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        size={"shortest_edge": 8 * 8, "longest_edge": 40 * 40},
    )
    images.save_pretrained(folder)
    return TinyQwenVL(folder, theirs, images, tokenizer)


VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_heads": 2,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "out_hidden_size": SIZES["hidden_size"],
}
TOKENS = {
    "image_token_id": IMAGE_TOKEN,
    "vision_start_token_id": IMAGE_TOKEN + 1,
    "vision_end_token_id": IMAGE_TOKEN + 2,
    "video_token_id": SIZES["vocab_size"] - 1,
    "tie_word_embeddings": False,
}


def _qwen2_5_config() -> Qwen2_5_VLConfig:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 2, 1]}
    return Qwen2_5_VLConfig(
        vision_config={**VISION, "window_size": 16, "fullatt_block_indexes": [1]},
        text_config={**SIZES, "rope_parameters": rope},
        **TOKENS,
    )


QWEN3_VISION = {**VISION, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]}
QWEN3_TEXT = {
    **SIZES,
    "head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}


def _qwen3_config() -> Qwen3VLConfig:
    return Qwen3VLConfig(vision_config=QWEN3_VISION, text_config=QWEN3_TEXT, **TOKENS)


def _qwen3_5_config() -> Qwen3_5Config:
    rope = {**QWEN3_TEXT["rope_parameters"], "partial_rotary_factor": 0.5}
    return Qwen3_5Config(
        vision_config={**VISION, "num_position_embeddings": 36},
        text_config={**recurrent.SIZES, "head_dim": 32, "rope_parameters": rope},
        **TOKENS,
    )


def _qwen3_moe_config() -> Qwen3VLMoeConfig:
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return Qwen3VLMoeConfig(
        vision_config=QWEN3_VISION,
        text_config={**QWEN3_TEXT, **experts, "mlp_only_layers": [0]},
        **TOKENS,
    )
