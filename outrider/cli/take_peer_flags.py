"""Turns flags of vLLM and SGLang on a command line into ours."""

import sys

from outrider.config.peer_flags import PEER_FLAGS
from outrider.config.peer_meaning import is_peer_flag, needs_value, our_flags, peer_meaning
from outrider.errors import ConfigError

COMMANDS = ("serve", "generate", "chat")  # those that load a model


def take_peer_flags(arguments: list[str], known: set[str]) -> list[str]:
    """The arguments in our flags. A flag that this command knows is left alone."""
    if arguments[:1] not in [[name] for name in COMMANDS]:
        return arguments
    taken, rest = arguments[:1], list(arguments[1:])
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*taken, argument, *rest]
        name, _, value = argument.partition("=")
        if name in known or not is_peer_flag(name):
            taken.append(argument)
            continue
        if needs_value(name) and not value:
            value = _pop_value(name, rest)
        while name in PEER_FLAGS and PEER_FLAGS[name].has_more and rest and rest[0][:1] != "-":
            rest.pop(0)
        taken += _ours(name, value, known)
    return taken


def _pop_value(name: str, rest: list[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise ConfigError(f"{name} needs a value; give one or omit the flag")
    return rest.pop(0)


def _ours(name: str, value: str, known: set[str]) -> list[str]:
    flag = peer_meaning(name, value)
    ours = our_flags(flag, value)
    is_unknown = flag.means == "ours" and ours and ours[0] not in known
    if flag.means == "nothing" or is_unknown:
        reason = f"{ours[0]} has no effect here" if is_unknown else flag.text
        print(f"note: {name} changes nothing: {reason}", file=sys.stderr)
        return []
    return ours
