"""The token that stands for masks in a new head.

Other engines embed a mask as this token, by the target's own embedding. So a head is trained with
that row, and stores no vector of its own: SGLang reads none, and vLLM only that of DFlash heads.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from outrider.frontend.tokenizer.tokenizer import Tokenizer, load_tokenizer
from outrider.models.model_config import ModelConfig
from outrider.models.safetensors_reader import Checkpoint

# SGLang refuses a head with another id, if the tokenizer has this token.
_NAME = "<|MASK|>"
_EMBEDDING = "model.embed_tokens.weight"


def choose_mask_token(target_folder: Path, target: ModelConfig) -> int:
    """A token that texts do not contain, and whose embedding is not zero: masks must differ by
    position, and zeros have no keys that rotate.
    """
    with Checkpoint(target_folder, target.family.nesting) as checkpoint:
        embedding = checkpoint.read(_EMBEDDING)  # [vocab, hidden]
        tokenizer = load_tokenizer(target_folder)
        unused = _unused(tokenizer, target.vocab_size) if isinstance(tokenizer, Tokenizer) else ()
        last = target.vocab_size - 1
        return next((token for token in unused if _is_usable(embedding, token)), last)


def _unused(tokenizer: Tokenizer, vocab: int) -> Iterator[int]:
    """Tokens that no text has, the usual choice first: ids after the tokenizer's last one."""
    named = tokenizer.find_token(_NAME)
    if named is not None:
        yield named
    yield from range(tokenizer.vocab_size, vocab)
    for token in sorted(tokenizer.special_ids - tokenizer.stop_ids, reverse=True):
        is_written = tokenizer.token_text(token).strip() in tokenizer.chat_template.source
        if token not in tokenizer.bos and not is_written:
            yield token


def _is_usable(embedding: torch.Tensor, token: int) -> bool:  # embedding [vocab, hidden]
    return token < embedding.shape[0] and bool(embedding[token].any())
