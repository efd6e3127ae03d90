"""Real tokenizers of the two families, small enough to train or spell out here."""

from collections.abc import Callable

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from outrider.frontend.tokenizer.chat_template import NoChatTemplate
from outrider.frontend.tokenizer.tokenizer import Tokenizer

CORPUS = (
    "the rider goes ahead and the party confirms the road",
    "na\u00efve caf\u00e9 \u00e0 la carte, d\u00e9j\u00e0 vu, \u00fcber stra\u00dfe",
    "\u4f60\u597d\u4e16\u754c\u4f60\u597d\u3002\u4e16\u754c\u4f60\u597d",
    "\u0414\u043e\u0431\u0440\u044b\u0439 \u0434\u0435\u043d\u044c",
    "\U0001f600\U0001f600\U0001f680 \U0001f468\u200d\U0001f469\u200d\U0001f467",
)
SPACE = "\u2581"  # how sentencepiece spells a space


def byte_level_backend() -> tokenizers.Tokenizer:
    """Byte-level BPE as in GPT-2, Llama 3 and Qwen; ids 0 and 1 are special, the last is not."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|begin|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(["<think \u2192>"])
    return backend


def sentencepiece_backend(decoder: decoders.Decoder) -> tokenizers.Tokenizer:
    """BPE with byte fallback as in Llama 2; ids 0 to 2 are special, 3 to 258 are bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [
        SPACE,
        SPACE + SPACE,
        *"abcdehort",
        "\u4f60",
        "th",
        "the",
        SPACE + "the",
        SPACE + "a",
    ]
    merges = [(SPACE, SPACE), ("t", "h"), ("th", "e"), (SPACE, "the"), (SPACE, "a")]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: token for token, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prepend, replace = normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([prepend, replace])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    backend.decoder = decoder
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def stripping_backend() -> tokenizers.Tokenizer:
    """The decoder of Llama 2: joins everything, then strips one leading space."""
    replace, strip = decoders.Replace(SPACE, " "), decoders.Strip(" ", 1, 0)
    return sentencepiece_backend(
        decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    )


def metaspace_backend() -> tokenizers.Tokenizer:
    """A decoder that drops the spaces of the first token only."""
    return sentencepiece_backend(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))


BACKENDS = {
    "byte_level": byte_level_backend,
    "stripping": stripping_backend,
    "metaspace": metaspace_backend,
}


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    return BACKENDS[request.param]()


@pytest.fixture(scope="session")
def byte_level() -> tokenizers.Tokenizer:
    return byte_level_backend()


@pytest.fixture(scope="session")
def stripping() -> tokenizers.Tokenizer:
    return stripping_backend()


@pytest.fixture(scope="session")
def make() -> Callable[[tokenizers.Tokenizer], Tokenizer]:
    """Wraps a backend without roles or template."""
    return lambda backend: Tokenizer(
        backend, bos=(), eos_ids=frozenset(), chat_template=NoChatTemplate()
    )


@pytest.fixture(scope="session")
def tokenizer(
    backend: tokenizers.Tokenizer, make: Callable[[tokenizers.Tokenizer], Tokenizer]
) -> Tokenizer:
    """Each family in turn."""
    return make(backend)
