"""Turns flags of vLLM and SGLang on a command line into ours."""

import json
import re
import sys

from outrider.config.peer_flags import PEER_FLAGS
from outrider.config.peer_meaning import is_peer_flag, needs_value, translate
from outrider.errors import ConfigError

# Short names of vLLM.
_LONG = {"-O": "--optimization-level", "-cc": "--compilation-config"}
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
        spelled, _, value = _long(argument).partition("=")
        name, _, key = spelled.partition(".")  # vLLM's --compilation-config.cudagraph_mode NONE
        if name in known or not is_peer_flag(name):
            taken.append(argument)
            continue
        if needs_value(name) and not value:
            value = _pop_value(name, rest)
        if key:
            value = json.dumps({key: value})
        while name in PEER_FLAGS and PEER_FLAGS[name].has_more and rest and rest[0][:1] != "-":
            rest.pop(0)
        found = translate(name, value, known.__contains__)
        taken += found.flags
        if found.note:
            print(f"note: {found.note}", file=sys.stderr)
    return taken


def _long(argument: str) -> str:
    """The argument with the long name of its flag: -O0 is --optimization-level=0."""
    if re.fullmatch(r"-O[0-9]", argument):
        return f"{_LONG['-O']}={argument[2:]}"
    name = re.match("[^.=]*", argument)[0]  # type: ignore[index]  # it always matches
    return _LONG.get(name, name) + argument[len(name) :]


def _pop_value(name: str, rest: list[str]) -> str:
    if not rest or rest[0].startswith("--"):
        raise ConfigError(f"{name} needs a value; give one or omit the flag")
    return rest.pop(0)
