"""What the machines of one model tell each other before and while their ranks run."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeHello:
    """A machine has come. Its facts must be those of machine 0."""

    node: int
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeRefused:
    """The machine cannot take part, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class NodeJob:
    """The machine takes part: it starts its ranks, which meet at this port of machine 0."""

    store_port: int


@dataclass(frozen=True, slots=True)
class RankHello:
    """First message of the connection of one rank."""

    rank: int


NodeMessage = NodeHello | NodeRefused | NodeJob | RankHello
"""Any message over a connection between machines, before a rank uses it."""
