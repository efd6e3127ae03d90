"""A tiny model with text: two random layers, and a real tokenizer of fifty tokens."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

END, START = "<|im_end|>", "<|im_start|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# How a byte-level vocabulary spells space, newline and the two bytes of an e with an acute accent.
SPACE, NEWLINE, ACUTE = "\u0120", "\u010a", ("\u00c3", "\u00a9")
PIECES = [
    END,
    START,
    *"abcdefghijklmnopqrstuvwxyz",
    SPACE,
    NEWLINE,
    *ACUTE,
    *"0123456789.,!?",
    "th",
    "the",
]


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer files of a model folder."""
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: token for token, piece in enumerate(PIECES)},
            merges=[("t", "h"), ("th", "e")],
        )
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END, START])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def tiny_llama(context: int = 256, *, intermediate: int = 48):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=intermediate,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,  # wide enough that the most likely token is clear
        bos_token_id=1,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()
