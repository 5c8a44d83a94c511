"""The configuration: precedence of its sources, what it refuses, and what the refusal says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetrail.catalog.errors import BadInputError
from pagetrail.config import PolicyConfig, log_limits, record_mode
from pagetrail.config_fields import all_fields, section_types
from pagetrail.config_load import LoadedConfig, Source, load_config
from pagetrail.controlplane.log.endpoints import is_local
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.policy.registry import EVALUATORS


def load(
    file: Path | None = None,
    environment: dict[str, str] | None = None,
    flags: dict[str, str] | None = None,
) -> LoadedConfig:
    given_flags = {name: ("--set", text) for name, text in (flags or {}).items()}
    return load_config(file, environment or {}, given_flags)


def refusal(**sources: object) -> str:
    with pytest.raises(BadInputError) as caught:
        load(**sources)  # type: ignore[arg-type]
    return str(caught.value)


def toml(directory: Path, text: str) -> Path:
    file = directory / "pagetrail.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_any_source_every_value_is_a_default_and_listens_on_loopback() -> None:
    loaded = load()
    assert {origin.source for origin in loaded.origins.values()} == {Source.DEFAULT}
    assert is_local(loaded.config.writer.bind)
    assert is_local(loaded.config.writer.publish)
    assert loaded.config.gateway.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("in_file", "in_environment", "in_flags", "pages", "source"),
    [
        (False, False, False, 4096, Source.DEFAULT),
        (True, False, False, 1001, Source.FILE),
        (True, True, False, 1002, Source.ENVIRONMENT),
        (False, True, False, 1002, Source.ENVIRONMENT),
        (True, True, True, 1003, Source.FLAG),
        (True, False, True, 1003, Source.FLAG),
        (False, False, True, 1003, Source.FLAG),
    ],
)
def test_a_flag_wins_over_the_environment_which_wins_over_the_file(
    tmp_path: Path,
    in_file: bool,
    in_environment: bool,
    in_flags: bool,
    pages: int,
    source: Source,
) -> None:
    loaded = load(
        toml(tmp_path, "[worker]\npages = 1001\n") if in_file else None,
        {"PAGETRAIL_WORKER__PAGES": "1002"} if in_environment else {},
        {"worker.pages": "1003"} if in_flags else {},
    )
    assert loaded.config.worker.pages == pages
    assert loaded.origins["worker.pages"].source is source
    assert loaded.origins["worker.lanes"].source is Source.DEFAULT


def test_the_environment_can_name_the_file_and_an_argument_wins_over_it(tmp_path: Path) -> None:
    named = toml(tmp_path, "[worker]\nlanes = 3\n")
    other = tmp_path / "other.toml"
    other.write_text("[worker]\nlanes = 5\n", encoding="utf-8")
    environment = {"PAGETRAIL_CONFIG": str(named)}
    assert load(environment=environment).config.worker.lanes == 3
    assert load(other, environment).config.worker.lanes == 5


def test_an_unknown_setting_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    message = refusal(file=toml(tmp_path, "[worker]\npage_token = 16\n"))
    assert "unknown setting worker.page_token;" in message
    assert "nearest known setting is worker.page_tokens" in message
    assert "pagetrail.toml" in message


def test_an_unknown_section_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    message = refusal(file=toml(tmp_path, "[workers]\npages = 16\n"))
    assert "nearest known section is worker" in message


def test_an_unknown_variable_is_refused_with_the_nearest_name() -> None:
    message = refusal(environment={"PAGETRAIL_GATEWAY__PORTS": "1"})
    assert "nearest known variable is PAGETRAIL_GATEWAY__PORT" in message


def test_an_unknown_flag_without_a_near_name_says_where_the_names_are() -> None:
    assert "pagetrail config show" in refusal(flags={"zzzz.qqqq": "1"})


def test_variables_of_other_programs_are_left_alone() -> None:
    assert load(environment={"HOME": "/", "PAGETRAIL_TRACES": "/t", "X__Y": "1"}).config


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("worker.pages", "0", "an integer from 1 to 16777216"),
        ("worker.pages", "many", "an integer from 1 to 16777216"),
        ("worker.pages", "1.5", "an integer from 1 to 16777216"),
        ("worker.pages", "true", "an integer from 1 to 16777216"),
        ("worker.pages", '"5000"', "an integer from 1 to 16777216"),
        ("worker.page_tokens", "17", "one of 16, 32"),
        ("record.tokens", "1", "true or false"),
        ("record.tokens", "yes", "true or false"),
        ("record.sample_ppm", "1000001", "an integer from 0 to 1000000"),
        ("writer.clock", "sundial", "one of wall, logical"),
        ("writer.bind", "127.0.0.1:7301", "an endpoint such as tcp://127.0.0.1:7301"),
        ("policy.evict", "value-density", "an evaluator such as residency/value-density@1"),
        ("worker.id", "Worker 1", "a name of at most 64 lower-case letters"),
        ("run.directory", "", "text that is not empty"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_with_what_was_expected(
    name: str, text: str, expected: str
) -> None:
    message = refusal(flags={name: text})
    assert name in message
    assert expected in message
    assert "--set" in message


def test_text_in_the_file_for_a_number_is_refused(tmp_path: Path) -> None:
    message = refusal(file=toml(tmp_path, '[worker]\npages = "5000"\n'))
    assert "worker.pages = '5000'" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[worker\n", "is not TOML"),
        ("worker = 3\n", "expected a table [worker]"),
        ("[worker]\npages = 1\npages = 2\n", "is not TOML"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(file=toml(tmp_path, text))


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "is not TOML" in refusal(file=binary)
    assert "No such file" in refusal(file=tmp_path / "absent.toml")
    assert "directory" in refusal(file=tmp_path)


@pytest.mark.parametrize("name", ["writer.bind", "writer.publish"])
def test_a_writer_beyond_loopback_needs_keys(name: str) -> None:
    flags = {name: "tcp://10.0.0.7:7301"}
    assert "sockets.secret_key_file is not set" in refusal(flags=flags)
    flags["sockets.secret_key_file"] = "writer.key_secret"
    assert "sockets.client_keys_directory is not set" in refusal(flags=flags)
    flags["sockets.client_keys_directory"] = "clients"
    assert load(flags=flags).config


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", "127.0.0.1.evil"])
def test_a_gateway_beyond_loopback_needs_api_keys(host: str) -> None:
    flags = {"gateway.host": host}
    assert "gateway.api_keys_file is not set" in refusal(flags=flags)
    assert load(flags=flags | {"gateway.api_keys_file": "keys"}).config.gateway.host == host


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.9.9.9:1", True),
        ("tcp://localhost:1", True),
        ("tcp://[::1]:1", True),
        ("ipc:///tmp/x", True),
        ("tcp://*:1", False),
        ("tcp://0.0.0.0:1", False),
        ("tcp://[::]:1", False),
        ("tcp://eth0:1", False),
        ("tcp://localhost.example.org:1", False),
    ],
)
def test_only_addresses_of_this_machine_count_as_local(endpoint: str, local: bool) -> None:
    assert is_local(endpoint) is local


def test_a_pool_that_cannot_hold_one_longest_sequence_is_refused() -> None:
    flags = {"worker.pages": "64", "worker.page_tokens": "16", "worker.context": "1025"}
    assert "hold 1024 tokens and worker.context = 1025" in refusal(flags=flags)
    assert load(flags=flags | {"worker.context": "1024"}).config


def test_every_field_has_a_description_a_wording_and_a_default_that_passes_its_own_check() -> None:
    fields = all_fields()
    assert len(fields) == sum(len(struct.__struct_fields__) for struct in section_types().values())
    for field in fields:
        assert field.description.endswith("."), field.name
        assert field.expected, field.name
        msgspec.convert(field.default, type=field.type)


@given(st.data())
def test_a_setting_means_the_same_in_the_file_the_environment_and_a_flag(
    data: st.DataObject,
) -> None:
    field = data.draw(st.sampled_from([f for f in all_fields() if isinstance(f.default, int)]))
    value = data.draw(st.booleans() if isinstance(field.default, bool) else st.integers())
    text = str(value).lower() if isinstance(value, bool) else str(value)

    def outcome(**sources: object) -> object:
        try:
            config = load(**sources).config  # type: ignore[arg-type]
        except BadInputError as error:
            return str(error).partition(" (from")[0]
        return getattr(getattr(config, field.section), field.key)

    in_environment = outcome(environment={field.variable: text})
    assert outcome(flags={field.name: text}) == in_environment
    assert in_environment == value or field.name in str(in_environment)


@pytest.mark.parametrize(
    ("setting", "name", "said"),
    [
        ("policy.evict", "residency/unheard-of@1", "no evaluator of evict decisions"),
        ("policy.evict", "routing/min-ttft@1", "or residency/value-density@1"),
        ("policy.route", "routing/min-ttft@9", "expected routing/min-ttft@1"),
    ],
)
def test_an_evaluator_that_does_not_make_that_decision_is_refused(
    setting: str, name: str, said: str
) -> None:
    assert said in refusal(flags={setting: name})


def test_every_setting_of_policy_is_a_kind_of_decision_with_an_evaluator() -> None:
    kinds = {evaluator.kind.name.lower() for evaluator in EVALUATORS.values()}
    assert set(PolicyConfig.__struct_fields__) == kinds


@pytest.mark.parametrize(
    ("alternatives", "sample_ppm", "kept_ppm"),
    [("reference", "0", 0), ("reference", "25", 25), ("full", "0", 1_000_000)],
)
def test_alternatives_are_kept_in_full_or_as_a_sample(
    alternatives: str, sample_ppm: str, kept_ppm: int
) -> None:
    flags = {"record.alternatives": alternatives, "record.sample_ppm": sample_ppm}
    assert record_mode(load(flags=flags).config.record).sample_ppm == kept_ppm


def test_limits_of_the_log_are_the_log_s_own_unless_they_are_set() -> None:
    assert log_limits(load().config) == LogLimits()
    flags = {"writer.segment_bytes": "2097152", "sockets.heartbeat_ms": "1000"}
    limits = log_limits(load(flags=flags).config)
    assert (limits.segment_bytes, limits.heartbeat_ns) == (2_097_152, 1_000_000_000)
