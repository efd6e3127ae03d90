"""Where an engine's runner comes from, and what stands in its place while the engine sleeps."""

from typing import Protocol

from outrider.errors import ConfigError
from outrider.structured.grammar_cache import NO_GRAMMARS, Grammars
from outrider.wire.adapter import NO_ADAPTER_CHECKS, AdapterChecks
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.engine_stats import NO_STEPS
from outrider.wire.runner_facts import PendingResult, StepRunner
from outrider.wire.scheduled_batch import ScheduledBatch
from outrider.wire.sleep_level import SleepLevel


class HomeRunner(StepRunner, Protocol):
    """A runner, with the grammars that its rows can follow and the adapters that they can use."""

    @property
    def grammars(self) -> Grammars: ...
    @property
    def adapters(self) -> AdapterChecks: ...


class RunnerHome(Protocol):
    """Owns the models of a runner, and builds the runner again when it was dropped."""

    def offload(self, level: SleepLevel) -> None:
        """Take the weights off the device; the runner cannot run any more.

        Raises and changes nothing if there is no room for them.
        """
        ...

    def release_memory(self) -> None:
        """Return freed memory to the system. Call this when the runner is dropped."""
        ...

    def restore_weights(self) -> None:
        """Bring the weights back, unless they are there."""
        ...

    def build_again(self) -> HomeRunner:
        """A new runner of the same sizes, once the weights are there."""
        ...

    def use_head(self, folder: str) -> None:
        """Load another draft head of the same sizes, for the next runner. Refuses any other."""
        ...


class NoHome:
    """For an engine around a runner that was assembled elsewhere: it cannot sleep."""

    def offload(self, level: SleepLevel) -> None:
        raise ConfigError(
            f"this engine cannot sleep at level {level}: its models were loaded elsewhere"
        )

    def release_memory(self) -> None:
        pass

    def restore_weights(self) -> None:
        raise AssertionError("it never sleeps")

    def build_again(self) -> HomeRunner:
        raise AssertionError("it never sleeps")

    def use_head(self, folder: str) -> None:
        raise ConfigError(
            f"this engine cannot change to the head {folder}: its models were loaded elsewhere"
        )


class AwakeHome(NoHome):
    """For an engine whose pages other engines know: it never gives them back."""

    def offload(self, level: SleepLevel) -> None:
        raise ConfigError(
            f"a server with a --disaggregation-mode cannot sleep at level {level}; end it instead"
        )


class SleepingRunner:
    """Stands in for the runner while the engine sleeps."""

    counts = NO_STEPS
    grammars: Grammars = NO_GRAMMARS
    adapters: AdapterChecks = NO_ADAPTER_CHECKS

    def submit(self, batch: ScheduledBatch) -> PendingResult:
        raise AssertionError(f"step {batch.step} of an engine that sleeps")

    def find_tokens(self, span: EmbeddedSpan) -> tuple[int, ...]:
        raise AssertionError(f"{len(span)} embeddings for an engine that sleeps")

    def restart(self) -> None:
        raise AssertionError("no step of an engine that sleeps can fail")
