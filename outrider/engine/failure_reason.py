"""What went wrong in a step, for the user whose request ends by it."""

import re

LOST = "the device is lost to this process after a failed step; restart the process"
STOPPED_MID_STEP = "the engine was stopped in the middle of a step; load the model again"
_LONGEST_REASON = 200  # characters of an error's message; the log has all of it


def failure_reason(error: Exception) -> str:
    """One line, without paths of this machine."""
    lines = str(error).splitlines() or [""]
    # Words are found first and looked at after: one pattern for both is quadratic.
    message = re.sub(r"\S+", _without_path, lines[0])[:_LONGEST_REASON]
    return f"a step failed with {type(error).__name__}" + (f": {message}" if message else "")


def _without_path(word: re.Match[str]) -> str:
    return "..." if "/" in word[0] or "\\" in word[0] else word[0]
