"""A tiny random Qwen2.5-VL, whose rotary positions have three axes."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from support.tiny_sizes import SIZES
from support.tiny_vision import LETTERS, write_tokenizer

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
        with torch.inference_mode():
            all_ids = self.theirs.generate(
                ids,
                **more,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=None,
            )
        return ids[0].tolist(), all_ids[0, ids.shape[1] :].tolist()


def make_tiny_qwen_vl(folder: Path, *, seed: int = 0) -> TinyQwenVL:
    tokenizer = write_tokenizer(folder, SPECIAL, TEMPLATE)
    theirs = _tiny_model(seed)
    theirs.save_pretrained(folder)
    images = Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        size={"shortest_edge": 8 * 8, "longest_edge": 40 * 40},
    )
    images.save_pretrained(folder)
    return TinyQwenVL(folder, theirs, images, tokenizer)


def _tiny_model(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "window_size": 16,
        "fullatt_block_indexes": [1],
        "out_hidden_size": SIZES["hidden_size"],
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 2, 1]}
    config = Qwen2_5_VLConfig(
        vision_config=vision,
        text_config={**SIZES, "rope_parameters": rope},
        image_token_id=IMAGE_TOKEN,
        vision_start_token_id=IMAGE_TOKEN + 1,
        vision_end_token_id=IMAGE_TOKEN + 2,
        video_token_id=SIZES["vocab_size"] - 1,
        tie_word_embeddings=False,
    )
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.35)
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
    return model
