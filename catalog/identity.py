"""What names what: prefix chains, fingerprints, node, part and content ids, register names.

Owns every digest that leaves a process. An identity is the whole 32-byte digest, never a part of
it, and is the same in every process, on every platform, under every PYTHONHASHSEED. Different
kinds of thing are hashed under different domain strings, so an adapter named like a salt, or a
namespace cut at another place, cannot collide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from .errors import BadInputError

DIGEST_BYTES = 32
ROOT = bytes(DIGEST_BYTES)
TOKEN_MAX = 2**64 - 1

_PREFIX_DOMAIN = b"pagetrail/prefix/1\n"
_SALT_DOMAIN = b"pagetrail/salt/1\n"
_FINGERPRINT_DOMAIN = b"pagetrail/fingerprint/1\n"
_NODE_DOMAIN = b"pagetrail/node/1\n"
_PART_DOMAIN = b"pagetrail/part/1\n"

Canonical: TypeAlias = (
    "bool | int | bytes | str | Sequence[Canonical] | dict[str, Canonical] | None"
)


def canonical(value: Canonical) -> bytes:
    """Encode a value so that equal values, and only those, have equal bytes.

    Every item is a tag, a length and its bytes: ``("ab", "c")`` differs from ``("a", "bc")``, an
    absent value (``None``) from an empty one, text from bytes, ``True`` from 1. Mappings are
    written in byte order of their keys.

    Raises BadInputError for floats and every other type, which have no one canonical form.
    """
    if value is None:
        return b"N"
    if value is True or value is False:
        return b"B1" if value else b"B0"
    if isinstance(value, int):
        digits = str(int(value)).encode("ascii")
        return b"I%d:%b" % (len(digits), digits)
    if isinstance(value, bytes):
        return b"X%d:%b" % (len(value), value)
    if isinstance(value, str):
        text = value.encode("utf-8")
        return b"T%d:%b" % (len(text), text)
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise BadInputError("a canonical mapping needs text keys; turn other keys into text")
        pairs = sorted((key.encode("utf-8"), item) for key, item in value.items())
        return b"M%d:" % len(pairs) + b"".join(
            b"T%d:%b" % (len(key), key) + canonical(item) for key, item in pairs
        )
    if isinstance(value, (list, tuple)):
        return b"L%d:" % len(value) + b"".join(canonical(item) for item in value)
    raise BadInputError(
        f"{type(value).__name__} has no canonical form; use integers (IEEE bits for a float), "
        "text, bytes, lists or text-keyed mappings"
    )


def salted_root(salt: bytes | None) -> bytes:
    """The parent of a tenant's first chunk: all zeros without a salt, else a digest of the salt.

    An empty salt is a salt: its root differs from having none.
    """
    if salt is None:
        return ROOT
    return hashlib.sha256(_SALT_DOMAIN + canonical(salt)).digest()


def tenant_salt(tenant: str, salt: bytes | None) -> bytes | None:
    """The salt of a request: its own, and its tenant's name unless that is empty.

    So what a tenant keeps is its own without any salt of its requests, and never another's.
    """
    if not tenant:
        return salt
    return canonical([tenant] if salt is None else [tenant, salt])


def tokens_be(tokens: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """Tokens as u64 big-endian, concatenated. Raises BadInputError outside ``[0, 2**64)``."""
    try:
        array = np.asarray(tokens)
        if array.size and array.dtype.kind not in "iu":
            raise BadInputError(f"tokens must be integers, not {array.dtype}")
        if array.dtype.kind == "i" and array.size and int(array.min()) < 0:
            raise BadInputError("tokens must not be negative")
        return array.astype(">u8").tobytes()
    except OverflowError as error:
        raise BadInputError(f"tokens must be in [0, {TOKEN_MAX}]") from error


def chain(parent: bytes, tokens: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """The digest of a prefix that ends with ``tokens`` and starts with the prefix ``parent``.

    SHA-256 over: domain with version, parent (32 bytes), token count as u64 big-endian, each
    token as u64 big-endian. The count keeps a short tail from being an ancestor of the same range
    once it has grown.
    """
    _check_digest(parent, "parent")
    body = tokens_be(tokens)
    if not body:
        raise BadInputError("a chunk holds at least one token")
    count = (len(body) // 8).to_bytes(8, "big")
    return hashlib.sha256(_PREFIX_DOMAIN + parent + count + body).digest()


def prefix_chain(
    tokens: Sequence[int] | npt.NDArray[np.integer], chunk_tokens: int, root: bytes = ROOT
) -> tuple[bytes, ...]:
    """Digests of every prefix that ends on a chunk edge, and of the partial tail if there is one.

    ``result[k]`` commits to tokens ``[0, min((k + 1) * chunk_tokens, len(tokens)))``.
    """
    if chunk_tokens < 1:
        raise BadInputError(f"chunk_tokens must be at least 1, not {chunk_tokens}")
    return tuple(_chain_of(tokens_be(tokens), chunk_tokens, root))


def _chain_of(body: bytes, chunk_tokens: int, parent: bytes) -> Iterator[bytes]:
    _check_digest(parent, "root")
    step = chunk_tokens * 8
    sha256, domain = hashlib.sha256, _PREFIX_DOMAIN
    full_count = chunk_tokens.to_bytes(8, "big")
    full_end = len(body) - len(body) % step
    for start in range(0, full_end, step):
        parent = sha256(domain + parent + full_count + body[start : start + step]).digest()
        yield parent
    if full_end < len(body):
        count = ((len(body) - full_end) // 8).to_bytes(8, "big")
        yield sha256(domain + parent + count + body[full_end:]).digest()


class Adapter(msgspec.Struct, frozen=True):
    """A weight adapter. Its name alone is no identity: the same name may be reloaded."""

    name: str
    content_digest: bytes


class ExecutionVariant(msgspec.Struct, frozen=True):
    """How bits are computed and stored. Two numerically different builds must differ here."""

    name: str
    cache_storage: tuple[str, ...]  # per layout group
    numerical_mode: str
    page_layout: str
    depends_on: tuple[tuple[str, str], ...] = ()  # exact mode: kernel, library, instruction set


class Compatibility(msgspec.Struct, frozen=True):
    """All that must be equal for attention state to be reusable."""

    weights: str  # an immutable revision, or a digest of the weight files
    architecture: str
    config: dict[str, Canonical]  # RoPE scaling included
    layout_digest: bytes
    variant: ExecutionVariant
    adapter: Adapter | None = None


def fingerprint(what: Compatibility) -> bytes:
    """SHA-256 of the canonical encoding of everything that ``Compatibility`` names."""
    adapter: Canonical = None
    if what.adapter is not None:
        _check_digest(what.adapter.content_digest, "adapter content digest")
        adapter = [what.adapter.name, what.adapter.content_digest]
    _check_digest(what.layout_digest, "layout digest")
    value: Canonical = {
        "weights": what.weights,
        "architecture": what.architecture,
        "config": what.config,
        "adapter": adapter,
        "layout": what.layout_digest,
        "variant": {
            "name": what.variant.name,
            "cache_storage": list(what.variant.cache_storage),
            "numerical_mode": what.variant.numerical_mode,
            "page_layout": what.variant.page_layout,
            "depends_on": [list(pair) for pair in what.variant.depends_on],
        },
    }
    return hashlib.sha256(_FINGERPRINT_DOMAIN + canonical(value)).digest()


def node_id(model_fingerprint: bytes, prefix: bytes) -> bytes:
    """The durable node of a prefix under one fingerprint."""
    _check_digest(model_fingerprint, "fingerprint")
    _check_digest(prefix, "prefix digest")
    return hashlib.sha256(_NODE_DOMAIN + model_fingerprint + prefix).digest()


def part_id(node: bytes, group: int, shard: int) -> bytes:
    """One group's and shard's bytes of a node."""
    _check_digest(node, "node id")
    if group < 0 or shard < 0:
        raise BadInputError(f"group and shard must not be negative, not {group} and {shard}")
    return hashlib.sha256(_PART_DOMAIN + node + _coordinates(group, shard)).digest()


@lru_cache(maxsize=1024, typed=True)
def _coordinates(group: int, shard: int) -> bytes:
    """The same few coordinates are encoded for every node."""
    return canonical({"group": group, "shard": shard})


def content_id(payload: bytes | memoryview) -> bytes:
    """BLAKE3-256 of a part's payload in canonical order (slab, layer, token row)."""
    return blake3(payload).digest()


def register_name(kind: str, key: bytes, field: str) -> bytes:
    """The name of the register that guards one field of one entity (compare-and-set)."""
    return canonical([kind, key, field])


def _check_digest(value: bytes, what: str) -> None:
    if len(value) != DIGEST_BYTES:
        raise BadInputError(f"{what} must be {DIGEST_BYTES} bytes, not {len(value)}")
