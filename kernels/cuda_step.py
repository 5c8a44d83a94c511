"""A whole step on a card: the CUDA device's pages and attention, and dense row math by torch.

Implements ``StepDevice``. Every array of a step is a torch tensor on the card, from the embedding
to the logits; numpy arrays that come in (tokens, positions, norm weights, rotary tables) are
uploaded, those of the model once. Products are torch's, so a row's bits may depend on the rows
beside it: this device is never exact, and its identity says what made the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from .abi import Int32s, KernelInputError, RaggedBatch, Storage, check_slots
from .checks import check_weight
from .cuda.launch import source_digest
from .cuda_device import TORCH_NAMES, CudaDevice, CudaOptions
from .cuda_runtime import CudaRuntime
from .device import Activation, PackedLinear

INT64_MAX = 2**63 - 1


class CudaStepDevice(CudaDevice):
    """See the module. Used by one thread; all its work is on the runtime's compute stream."""

    def __init__(self, runtime: CudaRuntime, options: CudaOptions | None = None) -> None:
        super().__init__(runtime, options)
        self._model_arrays: dict[int, tuple[npt.NDArray[np.generic], Any]] = {}

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """What the bits depend on beside weights and inputs."""
        return (
            ("card", str(self._torch.cuda.get_device_name(self._runtime.device))),
            ("architecture", self._runtime.architecture),
            ("kernels", source_digest()),
            ("torch", str(self._torch.__version__)),
        )

    # Arrays

    def empty(self, rows: int, width: int) -> Any:
        """An uninitialised fp32 ``[rows, width]`` tensor on the card."""
        with self._compute():
            return self._torch.empty(
                (rows, width), dtype=self._torch.float32, device=self._runtime.device
            )

    def take(self, x: Any, rows: Any) -> Any:
        """Those rows of ``x``, as a tensor of their own."""
        with self._compute():
            return self._torch.index_select(x, 0, self._to_card(rows))

    def soft_cap(self, x: Any, cap: float) -> None:
        """``x = cap * tanh(x / cap)`` in place."""
        with self._compute():
            x.div_(cap).tanh_().mul_(cap)

    def fetch(self, x: Any) -> npt.NDArray[np.float32]:
        """The values on the host, waited for. Raises if a kernel met a slot past its pool."""
        with self._compute():
            host: npt.NDArray[np.float32] = x.cpu().numpy()
        self.check_errors()
        return host

    def begin(self, batches: tuple[RaggedBatch, ...], rows_per_item: int | None = None) -> None:
        """Upload the batches of a step, one place for each page group."""
        for place, batch in enumerate(batches):
            check_slots(batch.slots, INT64_MAX)  # a slot past its pool is found by ``fetch``
            self.stage(batch, place, rows_per_item)

    def on_card(self, values: npt.NDArray[np.generic]) -> Any:
        """A tensor of its own with these values."""
        return self._to_card(values)

    @property
    def batch_bytes_max(self) -> int:
        """Room for the arrays of one staged batch."""
        return self._options.batch_bytes_max

    def split_items_max(self, q_heads: int, width: int) -> int:
        """Items of a batch whose partial results there is room for."""
        room_o, room_lse = (tensor.numel() for tensor in self._partial_tensors)
        return int(min(room_o // (q_heads * width), room_lse // q_heads))

    def write(self, tensor: Any, values: npt.NDArray[np.generic]) -> None:
        """Put host values into a tensor on the card that a captured step reads."""
        with self._compute():
            tensor.copy_(self._torch.from_numpy(values))

    def captured(self, step: Callable[[], Any]) -> tuple[Any, Any]:
        """A graph of ``step`` and the tensor it answers with; see ``CudaRuntime.capture``."""
        answers: list[Any] = []

        def run() -> None:
            answers.append(step())

        graph = self.capture(run)
        return graph, answers[-1]

    def replay(self, graph: Any) -> None:
        """Run a captured step on the compute stream."""
        with self._compute():
            graph.replay()

    # Row math

    def pack(
        self, weight: Any, storage: Storage, bias: npt.NDArray[np.float32] | None = None
    ) -> PackedLinear:
        check_weight(weight, bias)
        outputs, depth = weight.shape
        with self._compute():
            data = self._torch.from_numpy(np.ascontiguousarray(weight)).to(
                self._runtime.device, getattr(self._torch, TORCH_NAMES[storage])
            )
        on_card = None if bias is None else self._to_card(bias)
        return PackedLinear(outputs, depth, storage, data, on_card)

    def linear(self, x: Any, weight: PackedLinear, out: Any, add: bool = False) -> None:
        self._check("x", x, weight.depth)
        self._check("out", out, weight.outputs)
        matrix: Any = weight.data
        with self._compute():
            product = self._torch.nn.functional.linear(x.to(matrix.dtype), matrix)
            if weight.bias is not None:
                product = product + weight.bias
            if add:
                out.add_(product)
            else:
                out.copy_(product)

    def rows_of(self, weight: PackedLinear, rows: Any) -> Any:
        matrix: Any = weight.data
        with self._compute():
            return self._torch.index_select(matrix, 0, self._to_card(rows)).float()

    def rms_norm(
        self,
        x: Any,
        groups: int,
        weight: npt.NDArray[np.float32],
        plus: float,
        eps: float,
        out: Any,
    ) -> None:
        self._check("x", x, groups * len(weight))
        self._check("out", out, groups * len(weight))
        scale = self.of_model(weight)
        with self._compute():
            rows = x.unflatten(1, (groups, len(weight)))
            square = rows.square().mean(-1, keepdim=True)
            normed = rows * self._torch.rsqrt(square + eps) * (scale + plus)
            out.copy_(normed.flatten(1))

    def rope(
        self,
        x: Any,
        heads: int,
        head_width: int,
        offset: int,
        positions: Int32s,
        tables: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
        interleaved: bool = False,
    ) -> None:
        half = tables[0].shape[1]
        self._check("x", x, heads * head_width)
        if offset + 2 * half > head_width:
            raise KernelInputError(
                f"{2 * half} rotary values from {offset} on do not fit a head of {head_width}"
            )
        at = self._positions(positions)
        with self._compute():
            cosine, sine = (
                self._torch.index_select(self.of_model(table), 0, at)[:, None] for table in tables
            )
            rotary = x.unflatten(1, (heads, head_width))[..., offset : offset + 2 * half]
            if interleaved:
                first, second = rotary[..., 0::2], rotary[..., 1::2]
            else:
                first, second = rotary[..., :half], rotary[..., half:]
            turned = first * cosine - second * sine, second * cosine + first * sine
            first.copy_(turned[0])
            second.copy_(turned[1])

    def gated(self, x: Any, kind: Activation, out: Any) -> None:
        width = out.shape[1]
        self._check("x", x, 2 * width)
        functional = self._torch.nn.functional
        with self._compute():
            gate, up = x[:, :width], x[:, width:]
            if kind is Activation.SILU:
                out.copy_(functional.silu(gate) * up)
            else:
                out.copy_(functional.gelu(gate, approximate="tanh") * up)

    def _check(self, name: str, x: Any, width: int) -> None:
        if x.dim() != 2 or x.shape[1] != width or x.dtype != self._torch.float32:
            raise KernelInputError(
                f"{name} must be float32 [rows, {width}], not {x.dtype} {tuple(x.shape)}"
            )

    def of_model(self, array: npt.NDArray[np.generic]) -> Any:
        """An array of the model on the card, uploaded when it is first met and kept."""
        known = self._model_arrays.get(id(array))
        if known is None:
            known = array, self._to_card(array)
            self._model_arrays[id(array)] = known
        return known[1]

    def _positions(self, positions: Any) -> Any:
        for staged in self._staged:
            if staged is not None and staged.batch.positions is positions:
                return staged.positions
        return self._to_card(positions)

    def _compute(self) -> AbstractContextManager[Any]:
        stream: AbstractContextManager[Any] = self._torch.cuda.stream(self._runtime.compute)
        return stream
