"""Facts' values as other programs read them: plain values that JSON can hold.

Structs become objects by field name, byte strings hexadecimal, encoded parts what they encode.
Nothing is guessed: what no body may contain is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import BadInputError


def plain(value: Any) -> Any:
    """A value of a body, or a whole body, as JSON can hold it.

    Raises BadInputError for what no body may contain, msgspec.MsgspecError for an encoded part
    that cannot be read.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, msgspec.Raw):  # a struct that only its evaluator knows: its bare array
        return plain(msgspec.msgpack.decode(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    raise BadInputError(
        f"{value!r} is no value of the wire format; expected integers, byte strings, text, "
        "booleans, nothing, and arrays and structs of them"
    )
