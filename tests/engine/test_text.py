"""Tokens to text and back, chat templates, and where a generation ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.engine.checkpoint import MissingModelError, read_json
from pagetrail.engine.stopping import FinishReason, OutputStream, StopRules
from pagetrail.engine.tokenizer import ModelTokenizer

TEXTS = [
    "plain words, and more of them",
    "naïve café, Grüße, 日本語のテキスト, emoji 👩‍👩‍👧 and flags 🇫🇷",
    "  two  spaces\n\nand\tlines ",
    "",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_models import save_tiny

    target = tmp_path_factory.mktemp("text")
    save_tiny("llama", target, num_hidden_layers=1)
    return target


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> ModelTokenizer:
    return ModelTokenizer.open(directory, read_json(directory / "config.json"))


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_and_text_equal_those_of_transformers(
    directory: Path, tokenizer: ModelTokenizer, text: str
) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    assert tokenizer.encode(text) == theirs.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_chat_is_rendered_as_transformers_renders_it(
    directory: Path, tokenizer: ModelTokenizer
) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?\nReally?"},
    ]
    assert tokenizer.render_chat(messages) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(tokenizer.encode_chat(messages)) == tokenizer.render_chat(messages)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_incremental_text_adds_up_and_never_splits_a_character(text: str) -> None:
    tokenizer = byte_tokenizer()
    stream = tokenizer.detokenizer()
    parts = [stream.push(token) for token in tokenizer.encode(text)]
    whole = "".join(parts) + stream.finish()
    assert whole == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert all("\N{REPLACEMENT CHARACTER}" not in part for part in parts)


@cache
def byte_tokenizer() -> ModelTokenizer:
    """Every byte is a token, so that every character beyond ASCII spans several."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return ModelTokenizer(inner, None, {}, (), add_bos=False)


def test_bytes_that_make_no_character_come_out_at_the_end() -> None:
    tokenizer = byte_tokenizer()
    half = tokenizer.encode("é")[:1]
    stream = tokenizer.detokenizer()
    assert stream.push(half[0]) == ""
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"
    assert stream.finish() == ""


def test_invalid_bytes_are_not_held_back_for_ever() -> None:
    tokenizer = byte_tokenizer()
    lone = tokenizer.encode("é")[1]
    stream = tokenizer.detokenizer()
    given_out = "".join(stream.push(lone) for _ in range(40))
    assert 0 < len(given_out) <= 40


def test_token_bytes_add_up_to_the_texts_bytes(tokenizer: ModelTokenizer) -> None:
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()
    assert tokenizer.token_bytes(2) == b"<eos>"
    with pytest.raises(BadInputError, match="not in the vocabulary"):
        tokenizer.token_bytes(10**6)


def test_a_template_cannot_reach_out_of_its_sandbox(directory: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    attack = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    (tmp_path / "chat_template.jinja").write_text(attack)
    opened = ModelTokenizer.open(tmp_path, {})
    with pytest.raises(BadInputError, match="refuses these messages"):
        opened.render_chat([{"role": "user", "content": "hi"}])


def test_a_template_can_refuse_messages_with_its_own_words(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes())
    settings = {"chat_template": "{{ raise_exception('roles must alternate') }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    opened = ModelTokenizer.open(tmp_path, {"eos_token_id": [2, 5]})
    assert opened.eos_token_ids == (2, 5)
    with pytest.raises(BadInputError, match="roles must alternate"):
        opened.encode_chat([])


def test_a_model_without_tokenizer_or_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingModelError, match=r"no tokenizer\.json"):
        ModelTokenizer.open(tmp_path, {})
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptionError, match="is not a tokenizer"):
        ModelTokenizer.open(tmp_path, {})
    with pytest.raises(BadInputError, match="no chat template"):
        byte_tokenizer().encode_chat([])


# Stop rules


def stream(rules: StopRules) -> tuple[OutputStream, Callable[[str], list[int]]]:
    tokenizer = byte_tokenizer()
    return OutputStream(tokenizer.detokenizer(), rules), tokenizer.encode


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet="abé", max_size=30),
    st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3),
)
def test_text_ends_before_the_first_stop_string_and_is_never_taken_back(
    text: str, stops: list[str]
) -> None:
    output, encode = stream(StopRules(tuple(stops), max_tokens=1_000))
    sent, finish = "", None
    for token in encode(text):
        emitted = output.push(token)
        sent += emitted.text
        finish = emitted.finish
        if finish:
            break
    # The end is seen with the character that completes a stop string, the earliest of them.
    ends = [at + len(s) for s in stops for at in range(len(text)) if text.startswith(s, at)]
    if not ends:
        assert finish is None
        assert text.startswith(sent)
        held = text[len(sent) :]
        assert held == "" or any(s.startswith(held) for s in stops)
    else:
        end = min(ends)
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        assert finish is FinishReason.STOP
        assert sent == text[: min(starts)]


def test_an_end_token_ends_without_text_and_names_itself() -> None:
    output, encode = stream(StopRules(token_ids=frozenset(encode_one("!")), max_tokens=10))
    texts = [output.push(token) for token in encode("ok!")]
    assert "".join(emitted.text for emitted in texts) == "ok"
    assert (texts[-1].finish, texts[-1].stop) == (FinishReason.STOP, encode_one("!")[0])
    with pytest.raises(BadInputError, match="has ended"):
        output.push(0)


def test_the_last_token_ends_by_length_with_everything_held_back() -> None:
    output, encode = stream(StopRules(("abcd",), max_tokens=3))
    texts = [output.push(token) for token in encode("abc")]
    assert [emitted.text for emitted in texts] == ["", "", "abc"]
    assert texts[-1].finish is FinishReason.LENGTH


def test_nothing_stops_before_min_tokens() -> None:
    rules = StopRules(token_ids=frozenset(encode_one("!")), max_tokens=10, min_tokens=3)
    output, encode = stream(rules)
    finishes = [output.push(token).finish for token in encode("!!!!")]
    assert finishes == [None, None, None, FinishReason.STOP]


def encode_one(char: str) -> list[int]:
    return byte_tokenizer().encode(char)


@pytest.mark.parametrize(
    "fields",
    [{"strings": ("",)}, {"strings": ("x",) * 17}, {"max_tokens": 0}, {"min_tokens": -1}],
)
def test_stop_rules_out_of_bounds_are_refused(fields: dict) -> None:
    with pytest.raises(BadInputError):
        StopRules(**fields)
