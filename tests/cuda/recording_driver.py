"""Stand-ins for CuPy and torch.cuda that record every call and run launches on the host.

Memory is ordinary torch memory; a launch runs in the emulator, at once or when the graph it was
captured into is replayed. torch's own operations are captured too: a replay computes each again
from the memory it read and writes the memory it wrote, as a graph of a card does. What a driver
would refuse or what would break a capture raises here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pagetrail.kernels.cuda.launch import Launch, SourceModule
from pagetrail.kernels.emulator.library import HostLauncher


class Recorder:
    """The calls, in order, and the graph that is being captured, if one is."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.graph: Graph | None = None
        self.current = "default"
        self.events_complete = True  # of events made from now on; else only once waited for
        self.launcher = HostLauncher()
        self.modules: dict[str, SourceModule] = {}
        self.streams: list[Stream] = []

    def note(self, *call: str) -> None:
        self.calls.append(call)

    def outside_capture(self, what: str) -> None:
        if self.graph is not None:
            raise RuntimeError(f"{what} is not allowed while a graph is captured")

    def compiled(self, module: SourceModule, architecture: str) -> Path:
        path = Path(f"{module.name}-{architecture}.cubin")
        self.modules[str(path)] = module
        return path


class Graph:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.work: list[Callable[[], None]] = []

    def replay(self) -> None:
        self.recorder.outside_capture("replaying a graph")
        self.recorder.note("replay", self.recorder.current)
        for one in self.work:
            one()


WAITS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "equal")


class CaptureOfTorch(TorchDispatchMode):
    """Keeps every operation of torch in the graph; refuses those that make a host wait."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        keywords = keywords or {}
        name = function.name().removeprefix("aten::")
        if name.split(".")[0] in WAITS:
            raise RuntimeError(f"{name} makes the host wait while a graph is captured")
        result = function(*arguments, **keywords)

        def again() -> None:
            fresh = function(*arguments, **keywords)
            for old, new in zip(tree_leaves(result), tree_leaves(fresh), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        self._graph.work.append(again)
        return result


class Function:
    def __init__(self, recorder: Recorder, module: SourceModule, name: str) -> None:
        self._recorder, self._module, self._name = recorder, module, name
        self._shared = 48 * 1024

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self._shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, value: int) -> None:
        self._recorder.outside_capture("changing a function")
        self._shared = value
        self._recorder.note("shared", self._name, str(value))

    def __call__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: tuple[Any, ...],
        *,
        shared_mem: int,
    ) -> None:
        if shared_mem > self._shared:
            raise RuntimeError(f"{self._name}: {shared_mem} bytes of shared memory not allowed")
        if not all(isinstance(argument, np.generic) for argument in arguments):
            raise TypeError("a kernel argument has no exact type")
        if min(grid) < 1:
            raise RuntimeError("CuPy launches one block for an empty grid")
        what = Launch(self._module, self._name, grid, block[0], shared_mem, arguments)
        self._recorder.note("launch", self._name, self._recorder.current)
        if self._recorder.graph is not None:
            self._recorder.graph.work.append(lambda: self._recorder.launcher.launch(what))
        else:
            self._recorder.launcher.launch(what)


class Stream:
    def __init__(self, recorder: Recorder, device: Any, priority: int) -> None:
        del device
        self.name = "compute" if priority < 0 else "transfer"
        self._recorder = recorder
        recorder.note("stream", self.name, str(priority))
        recorder.streams.append(self)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, id(self)

    @property
    def cuda_stream(self) -> int:
        return id(self)

    def wait_event(self, event: Event) -> None:
        self._recorder.note("wait_event", self.name, event.stream)

    def synchronize(self) -> None:
        self._recorder.outside_capture("waiting for a stream")
        self._recorder.note("synchronize", self.name)


class Event:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.stream = ""
        self.ready = recorder.events_complete

    def record(self, stream: Stream) -> None:
        self.stream = stream.name
        self._recorder.note("record", stream.name)

    def synchronize(self) -> None:
        self._recorder.outside_capture("waiting for an event")
        self._recorder.note("event_synchronize", self.stream)
        self.ready = True

    def query(self) -> bool:
        self._recorder.note("event_query", self.stream)
        return self.ready


class RecordingTorch:
    """torch with the card's memory on the host."""

    def __init__(self, recorder: Recorder, capability: tuple[int, int] = (9, 0)) -> None:
        self._recorder = recorder
        self.cuda = SimpleNamespace(
            Stream=lambda device, priority: Stream(recorder, device, priority),
            Event=lambda: Event(recorder),
            CUDAGraph=lambda: Graph(recorder),
            graph=self._graph,
            stream=self._stream,
            get_device_capability=lambda device: capability,
            get_device_name=lambda device: "recorded card",
            get_device_properties=lambda device: SimpleNamespace(multi_processor_count=4),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, kind: str, index: int) -> torch.device:
        del kind, index
        return torch.device("cpu")

    def zeros(self, *shape: Any, pin_memory: bool = False, **keywords: Any) -> torch.Tensor:
        self._recorder.outside_capture("taking memory")
        self._recorder.note("memory", "pinned" if pin_memory else "card")
        return torch.zeros(*shape, **keywords)

    def from_numpy(self, array: np.ndarray) -> torch.Tensor:
        self._recorder.outside_capture("an upload from memory that is not pinned")
        return torch.from_numpy(array.copy())  # memory of the card's own

    @contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        before, self._recorder.current = self._recorder.current, stream.name
        yield
        self._recorder.current = before

    @contextmanager
    def _graph(self, graph: Graph, stream: Stream) -> Iterator[None]:
        self._recorder.note("capture", stream.name)
        self._recorder.graph = graph
        try:
            with CaptureOfTorch(graph):
                yield
        finally:
            self._recorder.graph = None


class RecordingCupy:
    """The part of CuPy that loads and launches. ``older`` knows streams by their pointers."""

    def __init__(self, recorder: Recorder, *, older: bool = False) -> None:
        self._recorder = recorder
        self.cuda = SimpleNamespace(Stream=SimpleNamespace(from_external=self._external))
        if older:
            self.cuda = SimpleNamespace(Stream=SimpleNamespace(), ExternalStream=self._pointer)

    @contextmanager
    def _external(self, stream: Stream) -> Iterator[None]:
        before, self._recorder.current = self._recorder.current, stream.name
        yield
        self._recorder.current = before

    def _pointer(self, pointer: int) -> Any:
        (stream,) = (s for s in self._recorder.streams if s.cuda_stream == pointer)
        return self._external(stream)

    def RawModule(self, *, path: str) -> Any:  # noqa: N802 - CuPy's own name
        self._recorder.outside_capture("loading a module")
        self._recorder.note("load", path)
        module = self._recorder.modules[path]
        return SimpleNamespace(get_function=lambda name: Function(self._recorder, module, name))
