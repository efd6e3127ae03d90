"""Where steps run, one after another: a CUDA stream of their own, or the calling thread."""

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch


class DeviceEvent(Protocol):
    """A point in a stream: it has passed when everything submitted before it is done."""

    @property
    def has_passed(self) -> bool: ...

    def wait(self) -> None:
        """Return once the event has passed."""
        ...

    def seconds_until(self, later: "DeviceEvent") -> float:
        """Device time between two events that both have passed."""
        ...


class DeviceStream(Protocol):
    """Runs everything submitted inside `active`, in order."""

    def active(self) -> AbstractContextManager[object]: ...

    def record_event(self) -> DeviceEvent: ...


class HostEvent:
    """A point in the calling thread, which has passed as soon as it exists."""

    def __init__(self) -> None:
        self._time = time.perf_counter()

    @property
    def has_passed(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def seconds_until(self, later: DeviceEvent) -> float:
        assert isinstance(later, HostEvent), "events of one stream are of one kind"
        return later._time - self._time


class HostStream:
    """The calling thread: work is done when the call returns."""

    def active(self) -> AbstractContextManager[object]:
        return nullcontext()

    def record_event(self) -> HostEvent:
        return HostEvent()


class CudaEvent:
    """An event of a CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(stream)

    @property
    def has_passed(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()

    def seconds_until(self, later: DeviceEvent) -> float:
        assert isinstance(later, CudaEvent), "events of one stream are of one kind"
        milliseconds: float = self._event.elapsed_time(later._event)
        return milliseconds / 1e3


class CudaStream:
    """Owns a CUDA stream; graphs cannot be captured on the default one."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Weights and tables were made on the default stream.
        self._stream.wait_stream(torch.cuda.default_stream(device))

    def active(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def record_event(self) -> CudaEvent:
        return CudaEvent(self._stream)


def record_event_here(device: torch.device) -> DeviceEvent:
    """An event in the stream that is active on this device."""
    return CudaEvent(torch.cuda.current_stream(device)) if device.type == "cuda" else HostEvent()


def is_host(device: torch.device) -> bool:
    """Whether steps run in the calling thread, so that it can decide in the middle of a step."""
    return device.type == "cpu"


def open_device_stream(device: torch.device) -> DeviceStream:
    """The stream on which a device runs steps."""
    return CudaStream(device) if device.type == "cuda" else HostStream()
