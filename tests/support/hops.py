"""Follows a request through the package: the files on the call stack at each landmark.

A landmark is a function in which the request changes its form: text becomes ids, ids a submission,
a batch a plan, and so on. The path of a request is the list of files that come onto the call stack
from one landmark to the next.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import outrider

ROOT = Path(outrider.__file__).parent
Landmark = tuple[str, str]  # file in the package, and the qualified name of the function


class Follower:
    """Notes the call stack when each landmark is reached for the first time, in any order."""

    def __init__(self, landmarks: Sequence[Landmark], target: Path | None = None) -> None:
        self._wanted = set(landmarks)
        self._target = target  # written at every landmark: a worker process ends without notice
        self.stacks: dict[Landmark, list[str]] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            place = (_file_of(frame), frame.f_code.co_qualname)
            is_new = place in self._wanted and place not in self.stacks
            if is_new and not _is_dummy_run(frame):
                self.stacks[place] = _stack_of(frame)
                if self._target is not None:
                    noted = [[*key, stack] for key, stack in self.stacks.items()]
                    self._target.write_text(json.dumps(noted))


@contextmanager
def followed(landmarks: Sequence[Landmark]) -> Iterator[Follower]:
    """Notes the landmarks that are reached inside, in every thread started inside."""
    follower = Follower(landmarks)
    threading.setprofile(follower)
    sys.setprofile(follower)
    try:
        yield follower
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def path_through(landmarks: Sequence[Landmark], stacks: dict[Landmark, list[str]]) -> list[str]:
    """The files in the order in which they come onto the stack, repeated visits included."""
    path: list[str] = []
    before: list[str] = []
    for landmark in landmarks:
        stack = stacks[landmark]
        common = 0
        while common < min(len(stack), len(before)) and stack[common] == before[common]:
            common += 1
        path += stack[common:]
        before = stack
    return path


# Python runs this file in every process that has its folder on the path.
_SITECUSTOMIZE = """
import json, os, sys, threading
from pathlib import Path
if "FOLLOW_INTO" in os.environ:
    sys.path.insert(0, os.environ["FOLLOW_SUPPORT"])
    from support.hops import Follower
    landmarks = [tuple(each) for each in json.loads(os.environ["FOLLOW_LANDMARKS"])]
    target = Path(os.environ["FOLLOW_INTO"]) / f"{os.getpid()}.json"
    follower = Follower(landmarks, target)
    threading.setprofile(follower)
    sys.setprofile(follower)
"""


def following_environment(folder: Path, landmarks: Sequence[Landmark]) -> dict[str, str]:
    """Variables with which processes note the landmarks they reach, one file per process."""
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    support = Path(__file__).parents[1]
    return {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT.parent)]),
        "FOLLOW_INTO": str(folder),
        "FOLLOW_SUPPORT": str(support),
        "FOLLOW_LANDMARKS": json.dumps(landmarks),
    }


def read_stacks(folder: Path) -> dict[Landmark, list[str]]:
    """The stacks that all processes noted."""
    stacks: dict[Landmark, list[str]] = {}
    for source in sorted(folder.glob("*.json")):
        noted = json.loads(source.read_text())
        stacks |= {(file, name): stack for file, name, stack in noted}
    return stacks


def _file_of(frame: FrameType) -> str:
    """The path below the package, or an empty string outside of it."""
    name = frame.f_code.co_filename
    return name[len(str(ROOT)) + 1 :] if name.startswith(str(ROOT)) else ""


def _is_dummy_run(frame: FrameType) -> bool:
    """Whether this is a step without requests, before the first one."""
    walk: FrameType | None = frame
    while walk is not None and walk.f_code.co_qualname != "Runner.dummy_run":
        walk = walk.f_back
    return walk is not None


def _stack_of(frame: FrameType) -> list[str]:
    """The files of the package on the stack, the outermost first, each once."""
    files: list[str] = []
    walk: FrameType | None = frame
    while walk is not None:
        file = _file_of(walk)
        if file and file not in files:
            files.append(file)
        walk = walk.f_back
    return files[::-1]
