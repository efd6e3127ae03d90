"""The parsed flags of `host`. No torch."""

from dataclasses import dataclass

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class HostArgs:
    """The steps to time."""

    rows: tuple[int, ...]
    draft_steps: int  # of a chain, which is measured beside plain decoding; 0: it is not
    emitted: int  # tokens that a row of a chain emits in each step
    steps: int
    has_profile: bool

    def __post_init__(self) -> None:
        if self.draft_steps and self.emitted > self.draft_steps + 1:
            raise ConfigError(
                f"--emitted {self.emitted}: a chain of {self.draft_steps} emits at most "
                f"{self.draft_steps + 1} tokens"
            )
