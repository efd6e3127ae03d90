"""A model that answers everything with one script, token by token."""

import itertools
import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from support.spoken import END, NEWLINE, SPACE, START


def spelled(text):
    return text.replace(" ", SPACE).replace("\n", NEWLINE)


def write_speaker(
    folder: Path,
    script: list[str],
    template: str,
    special: tuple[str, ...] = (),
    added: tuple[str, ...] = (),
) -> None:
    """A model whose next token is a function of the last: each is followed by the script's next."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    letters = [chr(code) for code in range(33, 127)]
    pieces = [END, START, *letters, SPACE, NEWLINE, *map(spelled, script)]
    ids = {piece: token for token, piece in enumerate(pieces)}
    size = 128
    assert len(pieces) <= size
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END, START, *special])
    backend.add_tokens(list(added))  # tags that are tokens and part of the text
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(pieces),
            hidden_size=size,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            bos_token_id=1,
            eos_token_id=0,
            tie_word_embeddings=False,
        )
    )
    chain = [NEWLINE, *map(spelled, script), END]
    with torch.no_grad():
        llama.model.layers[0].self_attn.o_proj.weight.zero_()
        llama.model.layers[0].mlp.down_proj.weight.zero_()
        llama.model.embed_tokens.weight.copy_(torch.eye(len(pieces), size))
        llama.lm_head.weight.zero_()
        for last, following in itertools.pairwise(chain):
            llama.lm_head.weight[ids[following], ids[last]] = 1.0
    llama.save_pretrained(folder)
