"""Where steps run, one after another: a CUDA stream of their own, or the calling thread."""

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch


class DeviceEvent(Protocol):
    """A moment in a lane: everything submitted before it, nothing after."""

    def wait(self) -> None:
        """Return once the lane has come this far."""
        ...

    def seconds_until(self, later: "DeviceEvent") -> float:
        """Time of the device between two moments that both have passed."""
        ...


class DeviceStream(Protocol):
    """Runs what is submitted inside `active`, in order."""

    def active(self) -> AbstractContextManager[object]: ...

    def record_event(self) -> DeviceEvent: ...


class HostEvent:
    """A moment of the calling thread: it has passed as soon as it exists."""

    def __init__(self) -> None:
        self._moment = time.perf_counter()

    def wait(self) -> None:
        pass

    def seconds_until(self, later: DeviceEvent) -> float:
        assert isinstance(later, HostEvent), "marks of one lane are of one kind"
        return later._moment - self._moment


class HostStream:
    """A CPU works while it is told to."""

    def active(self) -> AbstractContextManager[object]:
        return nullcontext()

    def record_event(self) -> HostEvent:
        return HostEvent()


class CudaEvent:
    """An event of a CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def wait(self) -> None:
        self._event.synchronize()

    def seconds_until(self, later: DeviceEvent) -> float:
        assert isinstance(later, CudaEvent), "marks of one lane are of one kind"
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
    """A moment of the lane that is active on this device."""
    return CudaEvent(torch.cuda.current_stream(device)) if device.type == "cuda" else HostEvent()


def open_device_stream(device: torch.device) -> DeviceStream:
    """The lane of a device."""
    return CudaStream(device) if device.type == "cuda" else HostStream()
