"""A tiny target for draft heads."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.tiny import save_tiny

from outrider.models.decoder import Decoder
from outrider.models.decoder_loader import load_decoder
from outrider.models.draft_model import AnyDraftModel
from outrider.models.eagle.head_loader import load_head
from outrider.models.eagle.inspect_head import HeadReport, inspect_head

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Target:
    """The same weights twice: as a transformers model and as our decoder."""

    theirs: object
    folder: Path
    decoder: Decoder

    @property
    def config(self):
        return self.decoder.config

    def load(self, head: Path) -> AnyDraftModel:
        return load_head(
            head, target=self.decoder, target_folder=self.folder, dtype="float32", device=CPU
        )

    def inspect(self, head: Path) -> HeadReport:
        return inspect_head(head, self.config, self.folder)


@pytest.fixture(scope="session")
def target(tmp_path_factory) -> Target:
    folder = tmp_path_factory.mktemp("target")
    theirs = save_tiny("llama", folder)
    return Target(theirs, folder, load_decoder(folder, dtype="float32", device=CPU))
