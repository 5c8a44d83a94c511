"""What a CUDA device asks of CuPy and torch: modules, launches, streams, events, graphs, memory.

torch owns every buffer and stream; CuPy loads the cubins and launches. Both libraries are handed
in, so that a test can drive every call against a recording double; ``CudaRuntime.open`` imports
them and fails with a clear message where there is no card.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .abi import KernelInputError
from .cuda.launch import Launch, SourceModule
from .cuda.nvrtc import cubin_file

LOW_PRIORITY = 0  # of torch streams; -1 is high
HIGH_PRIORITY = -1
SHARED_BYTES_WITHOUT_OPT_IN = 48 * 1024
SHARED_BYTES_MAX = {"sm_80": 163 * 1024, "sm_90": 227 * 1024}  # of one block


class CudaUnavailableError(RuntimeError):
    """There is no usable card, or a library for it is missing. Says which and what to do."""


class CudaRuntime:
    """One card's compute and transfer streams and loaded kernels."""

    def __init__(
        self,
        cupy: Any,
        torch: Any,
        index: int = 0,
        compiled: Callable[[SourceModule, str], Path] = cubin_file,
    ) -> None:
        self.cupy = cupy
        self.torch = torch
        self.device = torch.device("cuda", index)
        major, minor = torch.cuda.get_device_capability(self.device)
        self.architecture = f"sm_{major}{minor}"
        if self.architecture not in SHARED_BYTES_MAX:
            raise CudaUnavailableError(
                f"the kernels are built for {', '.join(SHARED_BYTES_MAX)}, the card is "
                f"{self.architecture}; use the CPU device"
            )
        self.compute = torch.cuda.Stream(self.device, priority=HIGH_PRIORITY)
        self.transfer = torch.cuda.Stream(self.device, priority=LOW_PRIORITY)
        self._compiled = compiled
        self._modules: dict[SourceModule, Any] = {}
        self._functions: dict[tuple[SourceModule, str], Any] = {}
        self._shared: dict[tuple[SourceModule, str], int] = {}

    @classmethod
    def open(cls, index: int = 0) -> CudaRuntime:
        """The runtime of a card. Raises CudaUnavailableError."""
        try:
            torch, cupy = importlib.import_module("torch"), importlib.import_module("cupy")
        except ImportError as error:
            raise CudaUnavailableError(
                f"{error.name} is not installed; install the gpu extra, or use the CPU device"
            ) from error
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise CudaUnavailableError(
                f"torch sees no card {index}; it needs a CUDA build of torch and a driver"
            )
        return cls(cupy, torch, index)

    def prepare(self, what: Launch) -> Any:
        """Load the kernel of a launch and allow its shared memory; nothing is launched.

        Must have run for every launch of a step before the step is captured.
        """
        most = SHARED_BYTES_MAX[self.architecture]
        if what.shared_bytes > most:
            raise KernelInputError(
                f"{what.kernel} needs {what.shared_bytes} bytes of shared memory a block, "
                f"{self.architecture} has {most}; use narrower heads or the CPU device"
            )
        key = (what.module, what.kernel)
        if what.module not in self._modules:
            path = self._compiled(what.module, self.architecture)
            self._modules[what.module] = self.cupy.RawModule(path=str(path))
        if key not in self._functions:
            self._functions[key] = self._modules[what.module].get_function(what.kernel)
        function = self._functions[key]
        allowed = self._shared.get(key, SHARED_BYTES_WITHOUT_OPT_IN)
        if what.shared_bytes > allowed:
            function.max_dynamic_shared_size_bytes = what.shared_bytes
            self._shared[key] = what.shared_bytes
        return function

    def launch(self, what: Launch, stream: Any) -> None:
        """Put a launch on a torch stream; it has not run when this returns."""
        function = self.prepare(what)
        with self._external(stream):
            function(what.grid, (what.threads, 1, 1), what.arguments, shared_mem=what.shared_bytes)

    def event(self, stream: Any) -> Any:
        """An event that completes when all that stands on the stream now has run."""
        event = self.torch.cuda.Event()
        event.record(stream)
        return event

    def capture(self, step: Callable[[], None]) -> Any:
        """A torch graph of what ``step`` puts on the compute stream.

        ``step`` runs once before the capture, so that modules are loaded and memory is allocated;
        it must touch fixed addresses only, and must not wait for the card.
        """
        with self.torch.cuda.stream(self.compute):
            step()
        self.compute.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.compute):
            step()
        return graph

    def _external(self, stream: Any) -> Any:
        """A torch stream as CuPy's current one; older builds of either lack the stream protocol."""
        stream_type = self.cupy.cuda.Stream
        if hasattr(stream_type, "from_external") and hasattr(stream, "__cuda_stream__"):
            return stream_type.from_external(stream)
        return self.cupy.cuda.ExternalStream(stream.cuda_stream)
