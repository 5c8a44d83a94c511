"""An array as a launch sees it, and the checks before a launch.

Knows no array library: numpy arrays of the emulator and torch tensors of a card are both described
by address, shape, strides, element type and place. Every check raises KernelInputError and says
what was wrong, what was expected and, where it helps, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..abi import KernelInputError, RaggedBatch, SlabSpec, Storage
from .copies import PageExtent
from .paged import BatchLayout, SlabLayer


class Element(Enum):
    """Types of array elements that cross the border."""

    F32 = "float32"
    F16 = "float16"
    BF16 = "bfloat16"
    I32 = "int32"
    I64 = "int64"
    U8 = "uint8"

    @property
    def bytes(self) -> int:
        return {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "U8": 1}[self.name]


ELEMENT_OF = {Storage.F32: Element.F32, Storage.F16: Element.F16, Storage.BF16: Element.BF16}
STORAGE_OF = {element: storage for storage, element in ELEMENT_OF.items()}


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """Where an array lies and how. ``strides`` count elements; ``place`` names its memory."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: Element
    place: str = "host"


@dataclass(frozen=True, slots=True)
class PoolArray:
    """One slab's pool: ``array`` is ``[layers, pages, page_tokens, heads, width]``."""

    spec: SlabSpec
    pages: int
    page_tokens: int
    array: DeviceArray

    def layer(self, layer: int) -> SlabLayer:
        """One layer of the pool. Raises KernelInputError when there is no such layer."""
        if not 0 <= layer < self.spec.layers:
            raise KernelInputError(
                f"slab {self.spec.name!r} has {self.spec.layers} layers, not layer {layer}"
            )
        layer_stride, page, token, head, _ = self.array.strides
        at = self.array.address + layer * layer_stride * self.array.element.bytes
        return SlabLayer(at, page, token, head, self.spec.width)

    @property
    def width(self) -> int:
        """Elements of a head."""
        return self.spec.width

    def extents(self) -> tuple[PageExtent, ...]:
        """The pool in bytes, for copies. Pages must be contiguous inside."""
        element = self.array.element.bytes
        extent = PageExtent(
            self.array.address,
            self.spec.layers,
            self.array.strides[0] * element,
            self.array.strides[1] * element,
            self.spec.row_bytes,
            self.page_tokens,
        )
        return (extent,)


def check_pool(pool: PoolArray) -> None:
    """Raise unless the pool's array has its spec's shape and element, rows contiguous."""
    spec = pool.spec
    shape = (spec.layers, pool.pages, pool.page_tokens, spec.heads, spec.width)
    wanted = ELEMENT_OF[spec.storage]
    if pool.array.shape != shape or pool.array.element is not wanted or pool.array.strides[4] != 1:
        raise KernelInputError(
            f"pool {spec.name!r} must be {wanted.value} {shape} with contiguous rows, not "
            f"{pool.array.element.value} {pool.array.shape} with strides {pool.array.strides}"
        )


def check_matrix(
    name: str, array: DeviceArray, rows: int, width: int, elements: Sequence[Element]
) -> None:
    """Raise unless ``array`` is ``[rows, width]`` of one of ``elements``, each row contiguous."""
    good = (
        array.element in elements
        and array.shape == (rows, width)
        and (array.strides[1] == 1 or width == 1 or rows == 0)
        and (array.strides[0] >= width or rows <= 1)
    )
    if not good:
        kinds = " or ".join(element.value for element in elements)
        raise KernelInputError(
            f"{name} must be {kinds} [{rows}, {width}] with contiguous rows that do not overlap, "
            f"not {array.element.value} {array.shape} with strides {array.strides}"
        )


def check_vector(name: str, array: DeviceArray, size: int, element: Element) -> None:
    """Raise unless ``array`` is a contiguous vector of ``size`` elements of that type."""
    good = array.element is element and array.shape == (size,)
    if not good or (size > 1 and array.strides != (1,)):
        raise KernelInputError(
            f"{name} must be a contiguous vector of {size} {element.value}, not "
            f"{array.element.value} {array.shape} with strides {array.strides}"
        )


def check_same_place(arrays: dict[str, DeviceArray]) -> None:
    """Raise unless all arrays lie in one memory."""
    places = {array.place for array in arrays.values()}
    if len(places) > 1:
        listed = ", ".join(f"{name} on {array.place}" for name, array in arrays.items())
        raise KernelInputError(f"all arrays of a launch must lie on one device: {listed}")


def batch_layout(
    batch: RaggedBatch, arrays: dict[str, DeviceArray], rows_per_item_max: int
) -> BatchLayout:
    """The batch's arrays on a device. ``batch`` gives the sizes, ``arrays`` the copies there."""
    sizes = {
        "q_indptr": batch.sequences + 1,
        "kv_len": batch.sequences,
        "kv_base": batch.sequences,
        "page_indptr": batch.sequences + 1,
        "page_ids": len(batch.page_ids),
        "merge_indptr": batch.rows + 1,
    }
    for name, size in sizes.items():
        check_vector(name, arrays[name], size, Element.I32)
    items = arrays["items"]
    if items.element is not Element.I32 or items.shape != batch.items.shape:
        raise KernelInputError(
            f"items must be int32 {batch.items.shape}, not {items.element.value} {items.shape}"
        )
    return BatchLayout(
        q_indptr=arrays["q_indptr"].address,
        kv_len=arrays["kv_len"].address,
        kv_base=arrays["kv_base"].address,
        page_indptr=arrays["page_indptr"].address,
        page_ids=arrays["page_ids"].address,
        items=items.address,
        merge_indptr=arrays["merge_indptr"].address,
        rows=batch.rows,
        sequences=batch.sequences,
        item_count=len(batch.items),
        rows_per_item_max=rows_per_item_max,
        partial_slots=batch.partial_slots,
        page_tokens=batch.page_tokens,
        window=batch.window,
    )
