"""The messages between the server and the process that trains its draft head, as msgpack."""

from collections.abc import Callable
from typing import Literal

import msgspec

from outrider.config.log_settings import LogSettings

LearnerState = Literal["waiting", "training", "paused", "failed"]


class LearnerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained, and where versions are written; sent on standard input."""

    target_folder: str
    head_folder: str  # of the head before learning
    learn_folder: str
    version: int  # in use at the start
    device: str
    buffer_bytes: int
    log: LogSettings
    endpoint: str = ""  # of ZMQ; known when the process is started


class LearnText(msgspec.Struct, frozen=True, tag=True):
    """The tokens of a request that has ended."""

    tokens: tuple[int, ...]  # prompt and answer
    num_prompt: int
    temperature: float


class Busy(msgspec.Struct, frozen=True, tag=True):
    """A request is there: compute nothing."""


class Idle(msgspec.Struct, frozen=True, tag=True):
    """No request is there."""


class SetPaused(msgspec.Struct, frozen=True, tag=True):
    """Train no more, or again. Texts are still collected."""

    is_paused: bool


class HeadInUse(msgspec.Struct, frozen=True, tag=True):
    """The engine drafts with this version: go on from it."""

    version: int


class HeadRefused(msgspec.Struct, frozen=True, tag=True):
    """The engine did not take the version that was offered."""

    version: int
    reason: str


class StopLearning(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


class LearnerReady(msgspec.Struct, frozen=True, tag=True):
    """The head can be trained."""


class LearnerRefused(msgspec.Struct, frozen=True, tag=True):
    """The head cannot be trained, or training failed for good."""

    reason: str


class LearnStatus(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What has been learned so far."""

    state: LearnerState = "waiting"
    version: int = 0  # in use
    texts: int = 0  # that have come since the start
    buffer_bytes: int = 0
    buffer_texts: int = 0
    rounds: int = 0  # of training, whether they gave a version or not
    steps: int = 0  # of training
    # Tokens per round on texts that were held back, of the head in use and of the trained one, in
    # the last round; 0 before the first.
    acceptance_before: float = 0.0
    acceptance_after: float = 0.0
    reason: str = ""  # why nothing is learned any more


class HeadOffer(msgspec.Struct, frozen=True, tag=True):
    """A version that is better than the one in use; answered by `HeadInUse` or `HeadRefused`."""

    version: int


ToLearner = LearnText | Busy | Idle | SetPaused | HeadInUse | HeadRefused | StopLearning
FromLearner = LearnerReady | LearnerRefused | LearnStatus | HeadOffer

encode_learner: Callable[[ToLearner | FromLearner], bytes] = msgspec.msgpack.Encoder().encode
decode_to_learner: Callable[[bytes], ToLearner] = msgspec.msgpack.Decoder(ToLearner).decode
decode_from_learner: Callable[[bytes], FromLearner] = msgspec.msgpack.Decoder(FromLearner).decode
