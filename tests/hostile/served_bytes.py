"""A server of a tiny random model that can spell every byte, started once per worker."""

import atexit
import json
import os
import tempfile
from pathlib import Path

import httpx
import tokenizers
import torch
from support.served import ServerProcess
from support.spoken import END, START, TEMPLATE
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 512
KNOWN = {"prompt": "the rider", "max_tokens": 8, "seed": 1, "ignore_eos": True}


class ByteServer:
    """Owns a server process, and knows what it answered when it was new."""

    def __init__(self, *flags: str) -> None:
        folder = save_bytes_model(Path(tempfile.mkdtemp(prefix="bytes-")))
        usual = ("--draft", "ngram", "--kv-tokens", "8192", "--max-num-seqs", "8")
        os.environ["OUTRIDER_CACHE"] = str(folder / "cache")
        self.process = ServerProcess(folder, folder / "log", *usual, *flags)
        self._num_read = 0
        self.right_answer = self.ask_known()

    def ask_known(self, timeout_s: float = 60.0) -> str:
        """The answer to a request that has one right answer."""
        url = f"{self.process.url}/v1/completions"
        response = httpx.post(url, json=KNOWN, timeout=timeout_s)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    def new_tracebacks(self) -> list[str]:
        """Raw errors in the server's log since the last call."""
        text = self.process.log.read_text(errors="replace")
        new, self._num_read = text[self._num_read :], len(text)
        return [new[new.index("Traceback") :][:1500]] if "Traceback" in new else []

    def is_alive(self) -> bool:
        return self.process.process.poll() is None

    def stop(self) -> None:
        if self.is_alive():
            self.process.stop()


_running: dict[tuple[str, ...], ByteServer] = {}


def byte_server(*flags: str) -> ByteServer:
    """The server of this worker; a new one if it has ended."""
    if flags not in _running or not _running[flags].is_alive():
        _running[flags] = ByteServer(*flags)
        atexit.register(_running[flags].stop)
    return _running[flags]


def save_bytes_model(folder: Path) -> Path:
    """A Llama of two random layers, and a tokenizer with a token for every byte."""
    pieces = [END, START, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={piece: token for token, piece in enumerate(pieces)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END, START])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    sizes = LlamaConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=0,
    )
    LlamaForCausalLM(sizes).save_pretrained(folder)
    return folder
