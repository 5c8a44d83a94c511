"""The tokenizer that a GGUF file carries, as the tokenizers library knows it.

Two kinds: byte-level BPE with its own list of merges, and SentencePiece's BPE, which has scores
instead: pieces are merged in falling order of the score of what they make. Anything else is refused
by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pagetrail.catalog.errors import BadInputError, CorruptionError

from .gguf_fields import GgufFields

TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_USER_DEFINED = 1, 3, 4
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's own character for a space
_GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%s}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_of(fields: GgufFields) -> Tokenizer:
    """The tokenizer. Raises BadInputError for a kind that is not known, CorruptionError when a
    field is missing or lists differ in length."""
    kind = fields.text("tokenizer.ggml.model")
    makers = {"gpt2": _byte_level, "llama": _sentence_piece}
    if kind not in makers:
        raise BadInputError(
            f"tokenizer model {kind!r} of this GGUF is not known (only {', '.join(makers)}); use "
            "the model's Hugging Face directory"
        )
    tokens: list[str] = fields.need("tokenizer.ggml.tokens")
    types = list(fields.get("tokenizer.ggml.token_type", [TOKEN_NORMAL] * len(tokens)))
    if len(types) != len(tokens):
        raise CorruptionError(f"this GGUF lists {len(tokens)} tokens but {len(types)} token types")
    tokenizer = makers[kind](fields, tokens, types)
    for wanted, special in ((TOKEN_CONTROL, True), (TOKEN_USER_DEFINED, False)):
        added = [
            AddedToken(text, special=special, normalized=False)
            for text, kind in zip(tokens, types, strict=True)
            if kind == wanted
        ]
        if special:
            tokenizer.add_special_tokens(added)
        else:
            tokenizer.add_tokens(added)
    return tokenizer


def _byte_level(fields: GgufFields, tokens: list[str], types: list[int]) -> Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in fields.need("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(
        models.BPE(vocab={text: index for index, text in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(fields.get("tokenizer.ggml.pre", "default"))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(fields: GgufFields, tokens: list[str], types: list[int]) -> Tokenizer:
    scores: list[float] = fields.need("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise CorruptionError(f"this GGUF lists {len(tokens)} tokens but {len(scores)} scores")
    unknown = tokens[int(fields.get("tokenizer.ggml.unknown_token_id", 0))]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: index for index, text in enumerate(tokens)},
            merges=_merges(tokens, types, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    leading = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    replaced = normalizers.Replace(" ", SPACE)
    spaced = [normalizers.Prepend(SPACE), replaced] if leading else [replaced]
    tokenizer.normalizer = normalizers.Sequence(spaced)
    stripped = [decoders.Strip(" ", 1, 0)] if leading else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
    )
    return tokenizer


def _merges(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to make a piece out of two, best score first: SentencePiece joins the pair whose
    result scores highest. Pieces of equal score go by their number, then by where they are cut."""
    normal = {
        text: index
        for index, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == TOKEN_NORMAL
    }
    found = []
    for text, index in normal.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in normal and right in normal:
                found.append((-scores[index], index, cut, left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    if name in ("default", "gpt-2"):
        return whole
    digits = {"llama-bpe": "3", "llama3": "3", "qwen2": "1"}.get(name)
    if digits is None:
        raise BadInputError(
            f"pre-tokenizer {name!r} of this GGUF is not known; use the model's Hugging Face "
            "directory"
        )
    split = pre_tokenizers.Split(Regex(_GPT4_SPLIT % digits), "isolated")
    return pre_tokenizers.Sequence([split, bytes_only])


def tokenizer_config_of(fields: GgufFields) -> dict[str, Any]:
    """What tokenizer_config.json says of it: special tokens and the chat template."""
    tokens: list[str] = fields.need("tokenizer.ggml.tokens")

    def token(role: str) -> str | None:
        index = fields.get(f"tokenizer.ggml.{role}_token_id")
        return None if index is None else tokens[int(index)]

    return {
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", False)),
        "chat_template": fields.get("tokenizer.chat_template"),
    }
