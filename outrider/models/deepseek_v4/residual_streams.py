"""How the parts of a DeepSeek-V4 layer read and write the residual streams of a token."""

import torch

from outrider.models.deepseek_v4.v4_config import StreamsConfig
from outrider.ops.linear.hyper_connections import (
    MixedStreams,
    MixWeights,
    collapse_streams,
    mix_streams,
    read_streams,
    write_streams,
)
from outrider.ops.norm_rope.rms_norm import Norm


def mean_of_streams(streams: torch.Tensor) -> torch.Tensor:  # [n, streams, hidden] -> [n, hidden]
    """What draft heads read of the streams between two layers."""
    return streams.mean(1)


class Connection:
    """Owns the mixing weights of one part of a layer."""

    def __init__(self, config: StreamsConfig, weights: MixWeights, norm: Norm) -> None:
        self._config = config
        self._weights = weights
        self._norm = norm

    def read(self, streams: torch.Tensor) -> MixedStreams:  # [n, streams, hidden]
        """The mixture of streams that the part reads."""
        eps, rounds = self._config.eps, self._config.rounds
        return read_streams(streams, self._weights, self._norm, eps=eps, rounds=rounds)

    def write(
        self,
        y: torch.Tensor,  # [n, hidden] the part's result
        streams: torch.Tensor,  # [n, streams, hidden]
        mixed: MixedStreams,
    ) -> torch.Tensor:  # [n, streams, hidden]
        """The streams after the part."""
        return write_streams(y, streams, mixed)


class Collapse:
    """Owns the mixing weights that make one stream of all, after the last layer."""

    def __init__(self, config: StreamsConfig, weights: MixWeights, norm: Norm) -> None:
        self._config = config
        self._weights = weights
        self._norm = norm

    def __call__(self, streams: torch.Tensor) -> torch.Tensor:  # [n, hidden] normalised
        return collapse_streams(streams, self._weights, self._norm, eps=self._config.eps)

    def mix(self, streams: torch.Tensor) -> torch.Tensor:  # [n, hidden]
        """The one stream before its norm."""
        return mix_streams(streams, self._weights, eps=self._config.eps)

    def normalise(self, mixed: torch.Tensor) -> torch.Tensor:  # [n, hidden] both
        """What the call returns, from that stream."""
        return self._norm(mixed)
