"""What must be equal for attention state to be exchanged: the fingerprint's input for this engine.

Two builds that could differ in one bit of a key or a value must differ here, so the device's own
identity (core source, instruction set, libraries) and both storages are part of it.
"""

from __future__ import annotations

import struct
from dataclasses import fields, is_dataclass
from enum import IntEnum

from pagetrail.catalog import identity
from pagetrail.catalog.layout import StateLayout, digest
from pagetrail.kernels.abi import Storage

from .descriptor import ModelDescriptor


def compatibility(
    weights: str,
    descriptor: ModelDescriptor,
    layout: StateLayout,
    storages: tuple[Storage, Storage],  # of pages, of weights
    mode: str,  # whether bits depend on the batch
    device_identity: tuple[tuple[str, str], ...],
) -> identity.Compatibility:
    """``weights`` is the identity of the weight files."""
    pages, weight_storage = storages
    config = _canonical(descriptor)
    if not isinstance(config, dict):
        raise TypeError("a descriptor is a mapping of its fields")
    return identity.Compatibility(
        weights=weights,
        architecture=descriptor.family,
        config=config,
        layout_digest=digest(layout),
        variant=identity.ExecutionVariant(
            name="cpu",
            cache_storage=tuple(pages.name.lower() for _ in layout.groups),
            numerical_mode=f"{mode}, weights {weight_storage.name.lower()}",
            page_layout="page of slabs and layers",
            depends_on=device_identity,
        ),
    )


def _canonical(value: object) -> identity.Canonical:
    """A value of dataclasses as canonical mappings; a float becomes its IEEE bits."""
    if is_dataclass(value):
        named: dict[str, identity.Canonical] = {
            field.name: _canonical(getattr(value, field.name)) for field in fields(value)
        }
        return {"of": type(value).__name__, **named}
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, float):
        return ["f64", struct.unpack("<Q", struct.pack("<d", value))[0]]
    if isinstance(value, tuple):
        return [_canonical(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"{type(value).__name__} has no canonical form in a descriptor")
