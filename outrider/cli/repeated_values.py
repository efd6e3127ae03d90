"""Flags with several values behind one name, as vLLM and SGLang have them.

`--lora-modules a=1 b=2` means `--lora-modules a=1 --lora-modules b=2`.
"""

_FLAGS = ("--lora-modules", "--lora-paths")


def repeat_flags(arguments: list[str]) -> list[str]:
    """The arguments with the flag before each of its values.

    All values but the first are NAME=PATH or JSON objects.
    """
    repeated: list[str] = []
    before, flag = "", ""  # the argument before, and the flag whose values come now
    for argument in arguments:
        if before in _FLAGS:
            flag = before
        elif flag and _is_module(argument):
            repeated.append(flag)
        else:
            flag = ""
        repeated.append(argument)
        before = argument
    return repeated


def _is_module(argument: str) -> bool:
    return argument.startswith("{") or ("=" in argument and not argument.startswith("-"))
