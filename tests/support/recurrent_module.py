"""Tiny recurrent models with a random draft module inside, and that module written down plainly."""

import copy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from support.recurrent import SIZES, tiny_recurrent

PLAIN = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")


class QwenModule:
    """A module over a whole text at once, of the parts that transformers has for its layers."""

    def __init__(self, theirs, *, seed: int = 5):
        torch.manual_seed(seed)
        hidden = SIZES["hidden_size"]
        self.theirs = theirs
        self.block = copy.deepcopy(theirs.model.layers[-1])  # one that attends
        norm = type(theirs.model.norm)
        self.norms = {name: norm(hidden, eps=1e-6) for name in PLAIN[1:]}
        self.fc = torch.nn.Linear(2 * hidden, hidden, bias=False)
        with torch.no_grad():
            for parameter in [*self.block.parameters(), self.fc.weight]:
                parameter.normal_(0.0, 0.2)
            for each in (*self.norms.values(), *self._block_norms()):
                each.weight.uniform_(-0.5, 0.5)

    def tensors(self) -> dict[str, torch.Tensor]:
        """As checkpoints name them."""
        named = {f"mtp.layers.0.{name}": each for name, each in self.block.state_dict().items()}
        named |= {f"mtp.{name}.weight": each.weight.detach() for name, each in self.norms.items()}
        return named | {"mtp.fc.weight": self.fc.weight.detach()}

    @torch.no_grad()
    def run(self, tokens, states):  # [rows], [rows, hidden] -> [rows, hidden]
        """The state after every row: row i reads the token at i + 1 and a state of position i."""
        model, norms = self.theirs.model, self.norms
        embedded = norms["pre_fc_norm_embedding"](model.embed_tokens(torch.tensor(tokens)))
        joined = torch.cat([embedded, norms["pre_fc_norm_hidden"](states)], -1)
        stream = self.fc(joined)[None]
        places = torch.arange(len(tokens))[None]
        angles = model.rotary_emb(stream, places)
        future = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)[None, None]
        out = self.block(stream, position_embeddings=angles, attention_mask=future)
        return norms["norm"](out[0])

    @torch.no_grad()
    def repeat(self, text, steps) -> list[int]:
        """What the module drafts when it is run again on its own states."""
        states = self.theirs.model(torch.tensor([text[:-1]])).last_hidden_state[0]
        read, drafts = list(text[1:]), []
        for _ in range(steps):
            last = self.run(read, states)[-1:]
            drafts.append(int(self.theirs.lm_head(last)[0].argmax()))
            read, states = [*read, drafts[-1]], torch.cat([states, last])
        return drafts

    def _block_norms(self):
        block = self.block
        yield from (block.input_layernorm, block.post_attention_layernorm)
        yield from (block.self_attn.q_norm, block.self_attn.k_norm)


def save_with_module(folder: Path, family: str) -> QwenModule:
    """Save a tiny model and a module beside its tensors."""
    theirs = tiny_recurrent(family)
    theirs.save_pretrained(folder)
    module = QwenModule(theirs)
    stored = load_file(folder / "model.safetensors") | module.tensors()
    stored = {name: each.contiguous() for name, each in stored.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return module
