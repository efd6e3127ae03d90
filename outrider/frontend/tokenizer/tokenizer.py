"""Text to token ids and back, for one model folder."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers.processors import TemplateProcessing

from outrider.errors import ConfigError, RequestError
from outrider.frontend.tokenizer.chat_template import DEFAULT, ChatTemplate, NoChatTemplate
from outrider.frontend.tokenizer.token_bytes import TokenBytes
from outrider.frontend.tokenizer.tokenizer_files import TextFiles, read_text_files

logger = logging.getLogger(__name__)

# Tokens that end a chat turn, for models whose configs do not list them as end of sequence. Only
# tokens that never occur inside a turn are here: "<|end|>" also closes a reasoning channel.
END_OF_TURN = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<end_of_utterance>"}
)

# Vocabularies that transformers can convert when there is no tokenizer.json.
OTHER_VOCABULARIES = ("*.model", "*.tiktoken", "vocab.json", "vocab.txt", "tekken.json")


class Tokenizer:
    """Owns the vocabulary of one model."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos: tuple[int, ...],  # empty when the model has none
        eos_ids: frozenset[int],
        chat_template: ChatTemplate | NoChatTemplate,
    ) -> None:
        backend.no_truncation()  # files saved by a training run often have both
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self.bos = bos
        self.eos_ids = eos_ids
        self.chat_template = chat_template
        self.special_ids = frozenset(token for token in added if added[token].special)
        # There may be a gap before added tokens, so the size is one more than the largest id.
        num_trained = backend.get_vocab_size(with_added_tokens=False)
        self.vocab_size = max([num_trained, *(token + 1 for token in added)])
        self.stop_ids = eos_ids | {  # what ends an answer in a chat
            token
            for token in self.special_ids
            if added[token].content in END_OF_TURN and added[token].content in chat_template.source
        }
        self._backend = backend
        self._bytes = TokenBytes(backend)

    @cached_property
    def longest_token(self) -> int:
        """Length in characters of the longest token."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids; with `add_special` the tokenizer adds its special tokens, such as the first.

        A rendered chat template has them already: encode it without, or they come twice.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text has half a surrogate pair at character {error.start}; send valid Unicode"
            ) from error
        # `encode` would hold the GIL, which takes seconds for a long text; a batch releases it.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special)
        return encoding.ids

    def decode(self, tokens: Sequence[int], *, skip_special: bool) -> str:
        """The text of a whole sequence; bytes that form no character become U+FFFD."""
        shown = [token for token in tokens if self.is_shown(token, skip_special=skip_special)]
        first = map(self.first_bytes, shown[:1])
        return b"".join([*first, *map(self.token_bytes, shown[1:])]).decode(errors="replace")

    def is_shown(self, token: int, *, skip_special: bool) -> bool:
        """Whether a token is part of the text. A model has ids that are in no vocabulary."""
        is_skipped = skip_special and token in self.special_ids
        return not is_skipped and self._backend.id_to_token(token) is not None

    def find_token(self, text: str) -> int | None:
        """The id of the token that is written so, if there is one."""
        return self._backend.token_to_id(text)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to a text; they need not be whole characters."""
        return self._bytes.inner(token)

    def first_bytes(self, token: int) -> bytes:
        """The bytes of the first token of a text, where sentencepiece drops a leading space."""
        return self._bytes.first(token)

    def token_text(self, token: int) -> str:
        """One token for display, special or not."""
        return self.token_bytes(token).decode(errors="replace")


class NoTokenizer:
    """The tokenizer of a folder that has none: prompts and answers are token ids."""

    bos: tuple[int, ...] = ()
    special_ids: frozenset[int] = frozenset()
    vocab_size = 0
    longest_token = 1
    chat_template = NoChatTemplate()

    def __init__(self, *, eos_ids: frozenset[int]) -> None:
        self.eos_ids = eos_ids
        self.stop_ids = eos_ids

    def encode(self, text: str, *, add_special: bool) -> list[int]:  # noqa: ARG002
        raise RequestError(
            "this model has no tokenizer; add a tokenizer.json, or pass prompt_token_ids"
        )

    def decode(self, tokens: Sequence[int], *, skip_special: bool) -> str:  # noqa: ARG002
        return ""

    def is_shown(self, token: int, *, skip_special: bool) -> bool:  # noqa: ARG002
        return False

    def token_bytes(self, token: int) -> bytes:  # noqa: ARG002
        return b""

    def first_bytes(self, token: int) -> bytes:  # noqa: ARG002
        return b""

    def token_text(self, token: int) -> str:  # noqa: ARG002
        return ""


def load_tokenizer(folder: Path, *, chat_template: str = "") -> Tokenizer | NoTokenizer:
    """The tokenizer of a model folder, with its chat template or another one, and stop tokens."""
    files = read_text_files(folder)
    if chat_template:
        files = replace(files, templates={DEFAULT: chat_template})
    if (folder / "tokenizer.json").is_file():
        return _assemble(_read_backend(folder / "tokenizer.json"), files)
    if any(path for pattern in OTHER_VOCABULARIES for path in folder.glob(pattern)):
        logger.info("%s has no tokenizer.json: converting its vocabulary by transformers", folder)
        return _assemble(_convert_backend(folder), files)
    logger.info("%s has no tokenizer: only prompts of token ids are served", folder)
    return NoTokenizer(eos_ids=files.eos_ids)


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    try:
        with _panics_as_errors():
            return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(
            f"{path} cannot be read ({error}); download it again or upgrade tokenizers"
        ) from error


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """Rust code that panics raises what is no Exception: make it one."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as panic:
        raise RuntimeError(str(panic)) from panic


def _convert_backend(folder: Path) -> tokenizers.Tokenizer:
    try:
        from transformers import AutoTokenizer

        with _panics_as_errors():
            backend = AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:  # missing packages and unknown formats raise many types
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{folder} has no tokenizer.json and transformers cannot make one ({reason}); "
            "add tokenizer.json, or pip install transformers sentencepiece tiktoken"
        ) from error
    assert isinstance(backend, tokenizers.Tokenizer)
    return backend


def _assemble(backend: tokenizers.Tokenizer, files: TextFiles) -> Tokenizer:
    _add_missing_tokens(backend, files.added_tokens)
    bos = _ids_of_role(backend, files, "bos_token")
    if files.adds_bos and not set(bos) <= set(backend.encode("").ids):
        opening = files.special_tokens["bos_token"]
        backend.post_processor = TemplateProcessing(
            single=[opening, "$A"], special_tokens=[(opening, bos[0])]
        )
    return Tokenizer(
        backend,
        bos=bos,
        eos_ids=files.eos_ids.union(_ids_of_role(backend, files, "eos_token")),
        chat_template=_chat_template(files),
    )


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, added: Mapping[int, tokenizers.AddedToken]
) -> None:
    """Add tokens that are declared only in the config, as fine-tuning runs do."""
    for token in sorted(added):
        text = added[token].content
        if backend.token_to_id(text) is not None:
            continue
        backend.add_tokens([added[token]])
        if backend.token_to_id(text) != token:
            raise ConfigError(
                f"tokenizer_config.json gives {text!r} the id {token}, but tokenizer.json ends "
                f"before {backend.token_to_id(text)}; download both from the same place"
            )


def _ids_of_role(backend: tokenizers.Tokenizer, files: TextFiles, role: str) -> tuple[int, ...]:
    """The id of the special token with this role, if the model has one."""
    token = backend.token_to_id(files.special_tokens.get(role, ""))
    return () if token is None else (token,)


def _chat_template(files: TextFiles) -> ChatTemplate | NoChatTemplate:
    if not files.templates:
        return NoChatTemplate()
    return ChatTemplate(files.templates, special_tokens=files.special_tokens)
