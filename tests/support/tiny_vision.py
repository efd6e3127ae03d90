"""A tiny random model that reads images, in a folder as transformers and its processor save it."""

import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
import torch
from PIL import Image
from tokenizers import models, pre_tokenizers
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from support.tiny_sizes import SIZES

LETTERS = "abcdefghijklmnopqrstuvwxyz :\n"
SPECIAL = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
SPECIAL += [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
TEMPLATE = (  # as SmolVLM's: it reads lists of parts alone
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}"
    "{{ '<image>' }}{% endif %}{% endfor %}{{ '<end_of_utterance>' }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TILE = 16  # pixels
TILE_TOKENS = 4


@dataclass(frozen=True)
class TinyVision:
    folder: Path
    theirs: PreTrainedModel
    processor: Idefics3Processor

    def reference(self, text, images, *, max_tokens=9):
        """The token ids of the prompt, and the tokens that transformers adds to it."""
        return self.scored(text, images, max_tokens=max_tokens)[:2]

    def scored(self, text, images, *, max_tokens=9):
        """The same, and the log-probabilities of these tokens."""
        inputs = self.processor(text=text, images=images or None, return_tensors="pt")
        return greedy(self.theirs, dict(inputs), max_tokens=max_tokens)


def greedy(theirs, inputs, *, max_tokens):
    """The prompt, the tokens that transformers adds to it, and their log-probabilities."""
    with torch.inference_mode():
        found = theirs.generate(
            **inputs,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
    prompt = inputs["input_ids"].shape[1]
    logprobs = [float(each[0].log_softmax(-1).max()) for each in found.logits]
    return found.sequences[0, :prompt].tolist(), found.sequences[0, prompt:].tolist(), logprobs


def make_tiny_vision(folder: Path, *, seed: int = 0) -> TinyVision:
    tokenizer = write_tokenizer(folder, SPECIAL, TEMPLATE)
    theirs = _tiny_model(seed)
    theirs.save_pretrained(folder)
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * TILE}, max_image_size={"longest_edge": TILE}
    )
    images.save_pretrained(folder)
    processor = Idefics3Processor(images, tokenizer, image_seq_len=TILE_TOKENS)
    return TinyVision(folder, theirs, processor)


def picture(seed: int, width: int, height: int) -> Image.Image:
    """Random pixels."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def data_url(image: Image.Image, form: str = "PNG") -> str:
    out = io.BytesIO()
    image.save(out, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"


def _tiny_model(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    vision = {
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": TILE,
        "patch_size": 4,
    }
    config = Idefics3Config(
        vision_config=vision,
        text_config={"model_type": "llama", **SIZES},
        scale_factor=2,
        image_token_id=len(LETTERS) + 3,
        tie_word_embeddings=False,
        pad_token_id=0,
    )
    model = Idefics3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.35)
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
    return model


def write_tokenizer(folder: Path, special: list[str], template: str) -> PreTrainedTokenizerFast:
    """One token per letter, and the special ones behind them."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {letter: token for token, letter in enumerate(LETTERS, start=3)}
    vocab |= {"?": 0, "<s>": 1, "</s>": 2}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab=vocab, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.add_special_tokens(["<s>", "</s>", *special])
    backend.save(str(folder / "tokenizer.json"))
    fields = {"chat_template": template, "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="?")
