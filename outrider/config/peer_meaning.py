"""What a flag of vLLM or SGLang means with its value, for command lines, files and `LLM`."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from outrider.config.peer_flags import PEER_FLAGS, PeerFlag
from outrider.errors import ConfigError

_ON, _OFF = "true", "false"
_NO_CAPTURES = "NONE"
_NOT_GIVEN = PeerFlag(means="ours", text="")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTranslation:
    """One of their flags in our words."""

    flags: tuple[str, ...] = ()  # ours, with their values
    note: str = ""  # why it changes nothing, if that must be told


def is_peer_flag(name: str) -> bool:
    return _base(name) in PEER_FLAGS


def needs_value(name: str) -> bool:
    return PEER_FLAGS[_base(name)].has_value


def translate(name: str, value: str, knows: Callable[[str], bool]) -> PeerTranslation:
    """Our flags for one of theirs. The value of a switch is empty, true or false.

    `--no-X` is X=false. Refuses what cannot be followed; `knows` says whether a flag of ours has a
    meaning where theirs was given.
    """
    flag = _meaning(name, value)
    if flag.means == "nothing":
        return PeerTranslation(note=f"{name} changes nothing: {flag.text}")
    ours = [*flag.text.split(), *([value] if flag.has_value else [])]
    if ours and not knows(ours[0]):
        return PeerTranslation(note=f"{name} changes nothing: {ours[0]} has no effect here")
    return PeerTranslation(flags=tuple(ours))


def _meaning(name: str, value: str) -> PeerFlag:
    flag, base = PEER_FLAGS[_base(name)], _base(name)
    if not flag.has_value:
        return _allowed(name, _of_switch(flag, name, _OFF if name != base else value))
    meaning = flag.of_values.get(_NO_CAPTURES if _is_eager(value) else value)
    if meaning is None:
        return _allowed(name, flag)
    return replace(_allowed(f"{name} {value}", meaning), has_value=False)


def _base(name: str) -> str:
    """The flag itself, where a name switches it off as vLLM's do."""
    positive = "--" + name.removeprefix("--no-")
    is_off = name not in PEER_FLAGS and name.startswith("--no-")
    return positive if is_off and _is_switch(positive) else name


def _is_switch(name: str) -> bool:
    return name in PEER_FLAGS and not PEER_FLAGS[name].has_value


def _of_switch(flag: PeerFlag, name: str, value: str) -> PeerFlag:
    if value.lower() in ("", _ON):
        return flag
    if value.lower() != _OFF:
        raise ConfigError(f"{name} takes no value, got {value}; omit the value, or the flag")
    # What is refused is off here, and what changes nothing is as it is.
    return flag.of_values.get(_OFF, flag if flag.means == "nothing" else _NOT_GIVEN)


def _allowed(name: str, flag: PeerFlag) -> PeerFlag:
    if flag.means == "refused":
        raise ConfigError(f"{name}: {flag.text}")
    return flag


def _is_eager(value: str) -> bool:
    """Whether JSON of vLLM or SGLang says that no step is captured."""
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        return False
    if not isinstance(fields, dict):
        return False
    mode, phases = fields.get("cudagraph_mode"), [fields.get(key) for key in ("decode", "prefill")]
    is_off = isinstance(mode, str) and mode.upper() == _NO_CAPTURES
    return is_off or fields.get("use_cudagraph") is False or all(map(_is_disabled, phases))


def _is_disabled(phase: Any) -> bool:
    return isinstance(phase, dict) and phase.get("backend") == "disabled"
