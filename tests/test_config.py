"""Settings: where a mistake is, in one line; which source wins; what the units mean."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladr import config
from ladr.config import ConfigError, Settings
from ladr.config_types import duration_text


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ladr.yaml"


def complaint(file: Path | None, text: str = "", environ: dict[str, str] | None = None) -> str:
    if file:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(file, environ or {})
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{file}:") if file else message


def test_without_a_file_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config.load(environ={}) == Settings()


def test_a_file_in_the_current_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ladr.yaml").write_text("router: {port: 7}")
    assert config.load(environ={}).router.port == 7


def test_a_named_file_must_exist(file: Path) -> None:
    assert complaint(None, environ={"LADR_CONFIG": str(file)}).startswith(f"LADR_CONFIG: {file}: no such file")


def test_the_environment_wins_over_the_file(file: Path) -> None:
    file.write_text("router: {port: 7, policy: round-robin}\nworker: {simulated: {step: 20ms}}")
    settings = config.load(file, {"LADR_ROUTER__PORT": "8", "LADR_WORKER__SIMULATED__GROWTH": "2"})
    assert (settings.router.port, settings.router.policy) == (8, "round-robin")
    assert settings.worker.simulated.step == timedelta(milliseconds=20)
    assert settings.worker.simulated.growth == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("router:\n  prot: 1\n", "2: unknown key 'router.prot'; did you mean 'port'?"),
        ("ruoter:\n  port: 1\n", "1: unknown key 'ruoter'; did you mean 'router'?"),
        ("worker:\n  simulated:\n    stepp: 1s\n", "3: unknown key 'worker.simulated.stepp'; did you mean 'step'?"),
        ("worker:\n  models:\n  - {nam: x}\n", "3: worker.models.0.name: Field required"),
        ("up:\n  fleet:\n  - id: a\n  - engin: x\n", "4: unknown key 'up.fleet.1.engin'; did you mean 'engine'?"),
        ("up:\n  fleet:\n  - id: a\n    slots: 0\n", "4: up.fleet.0.slots: Input should be greater than 0"),
        ("up:\n  fleet: [{simulated: {zzz: 1}}]\n", "2: unknown key 'up.fleet.0.simulated.zzz'; known here: "),
        ("router:\n  port: 1\n  tick: soon\n", "3: router.tick: give a duration such as 200ms or 1.5s"),
        ("router:\n  tick: 0s\n", "2: router.tick: give more than 0s"),
        ("router:\n  bus: [here]\n", "2: router.bus.0: give host:port"),
        ("router:\n  bus: ['h:70000']\n", "2: router.bus.0: give host:port"),
        ("router:\n  tick: .inf\n", "2: router.tick: give a duration"),
        ("router:\n  tick: 99999999999h\n", "2: router.tick: that is longer"),
        ("router:\n  max_message_bytes: lots\n", "2: router.max_message_bytes: give a size"),
        ("router: 5\n", "1: router: Input should be a valid dictionary"),
        ("- router\n", "1: expected sections such as 'router:', found a list"),
        ("router: {port: 1\nmetrics: {}\n", "2: not YAML: "),
        ("router:\n  port: 1\n  port: 2\n", "3: 'port' is given twice; the first is at "),
        ("up:\n  fleet: here\n", "2: up.fleet: Input should be a list"),
        ("up:\n  fleet: [{id: worker-2}, {}]\n", "2: up.fleet: two workers are named 'worker-2'"),
        ("worker:\n  models: [{name: a}, {name: a}]\n", "2: worker.models: two models are named 'a'"),
        ("up:\n  fleet: [{models: 'a,a=x'}]\n", "2: up.fleet.0.models: two models are named 'a'"),
        ("worker:\n  models: a b\n", "2: worker.models: 'a b' is no model's name"),
        ("worker:\n  report_interval: 1s\n", "2: worker.report_interval: give 50ms to 200ms"),
        ("metrics:\n  redis_url: http://x\n", "2: metrics.redis_url: give redis://host:6379/0"),
        ("router:\n  aliases: {a: b, b: a}\n", "2: router.aliases: 'a' stands for 'b', which is an alias too"),
        ("router:\n  aliases: {a: b, b: c}\n", "2: router.aliases: 'a' stands for 'b', which is an alias too"),
        ("router:\n  aliases: {a: a}\n", "2: router.aliases: 'a' stands for 'a', which is an alias too"),
        ("1: 2\n", "1: "),
        ("a: 2024-13-45\n", " cannot be read: "),
        ("a: \x07\n", " cannot be read: "),
    ],
)
def test_a_mistake_in_the_file_names_line_key_and_remedy(file: Path, text: str, message: str) -> None:
    assert complaint(file, text).startswith(message)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LADR_ROUTER__PROT": "1"}, "LADR_ROUTER__PROT: unknown key 'router.prot'; did you mean 'port'?"),
        ({"LADR_ROUTR__PORT": "1"}, "LADR_ROUTR__PORT: unknown key 'routr'; did you mean 'router'?"),
        ({"LADR_ROUTER__PORT": "x"}, "LADR_ROUTER__PORT: router.port: Input should be a valid integer"),
        ({"LADR_ROUTER__PORT": ""}, "LADR_ROUTER__PORT: router.port: Input should be a valid integer"),
        ({"LADR_WORKER__MODELS": '[{"name": ""}]'}, "LADR_WORKER__MODELS: worker.models.0.name: "),
        ({"LADR_UP__FLEET": '[{"x": 1}]'}, "LADR_UP__FLEET: unknown key 'up.fleet.0.x'"),
        ({"LADR_WORKER__MODELS": "[{"}, "LADR_WORKER__MODELS: it begins as JSON does, and is none: "),
        ({"LADR_WORKER__MODELS": "[" * 100_000}, "LADR_WORKER__MODELS: it begins as JSON does, and is none: "),
        ({"LADR_WORKER__OPENAI": "{x"}, "LADR_WORKER__OPENAI: it begins as JSON does, and is none: "),
        ({"LADR_WORKER__MODELS": "null"}, "LADR_WORKER__MODELS: null is no value"),
        ({"LADR_WORKER__MODELS": "a=b, c d=e"}, "LADR_WORKER__MODELS: worker.models: 'c d' is no model's name"),
        ({"LADR_ROUTER__ALIASES": "a=]"}, "LADR_ROUTER__ALIASES: router.aliases: ']' is no model's name"),
        ({"LADR_ROUTER__ALIASES": "chat"}, "LADR_ROUTER__ALIASES: router.aliases: give alias=name"),
        (
            {"LADR_ROUTER__PORT": "1", "LADR_ROUTER__PORT__X": "2"},
            "LADR_ROUTER__PORT__X: LADR_ROUTER__PORT sets the same; take one of them away",
        ),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(environ: dict[str, str], message: str) -> None:
    assert complaint(None, environ=environ).startswith(message)


def test_a_mistake_in_the_environment_is_not_blamed_on_the_file(file: Path) -> None:
    file.write_text("router:\n  port: 1\n")
    with pytest.raises(ConfigError, match=r"^LADR_ROUTER__PORT: "):
        config.load(file, {"LADR_ROUTER__PORT": "x"})


def test_variables_without_a_double_underscore_are_not_settings() -> None:
    assert config.load(environ={"LADR_ADDRESS": "here:1", "OTHER__PORT": "2"}) == config.load(environ={})


def test_lists_and_mappings_have_a_short_form() -> None:
    settings = config.load(
        environ={
            "LADR_ROUTER__BUS": "[::1]:2, a:1",
            "LADR_ROUTER__ALIASES": "fast=small, good=big",
            "LADR_WORKER__MODELS": "chat=chat.gguf, plain",
        }
    )
    assert settings.router.bus == ("[::1]:2", "a:1")
    assert settings.router.aliases == {"fast": "small", "good": "big"}
    assert [(model.name, model.source) for model in settings.worker.models] == [("chat", "chat.gguf"), ("plain", "")]


def test_a_fleet_entry_is_laid_over_the_worker(file: Path) -> None:
    file.write_text("""
worker: {slots: 3, engine: simulated, simulated: {step: 5ms, growth: 2}}
up:
  fleet:
    - {id: big, simulated: {step: 50ms}}
    - {slots: 9}
""")
    settings = config.load(file, {})
    big, other = settings.fleet_member(0), settings.fleet_member(1)
    assert (big.id, big.slots, big.simulated.growth) == ("big", 3, 2)
    assert big.simulated.step == timedelta(milliseconds=50)
    assert (other.slots, other.simulated.step) == (9, timedelta(milliseconds=5))


def test_units_are_real() -> None:
    environ = {"LADR_ROUTER__TTL": "1.5s", "LADR_ROUTER__TICK": "0.25", "LADR_ROUTER__MAX_MESSAGE_BYTES": "16MiB"}
    settings = config.load(environ=environ).router
    assert (settings.ttl, settings.tick) == (timedelta(seconds=1.5), timedelta(milliseconds=250))
    assert settings.max_message_bytes == 16 << 20


def test_secrets_are_never_shown() -> None:
    settings = config.load(environ={"LADR_METRICS__REDIS_URL": "redis://:hunter2@h:1/0"})
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(config.plain(settings))
    assert settings.metrics.redis_url.get_secret_value() == "redis://:hunter2@h:1/0"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:hunter2@h:1/0", "redis://:***@h:1/0"),
        ("rediss://me:hun:t@r2@h/0", "rediss://me:***@h/0"),
        ("redis://hunter2@h", "redis://***@h"),
        ("unix:///run/redis?password=hunter2&db=1", "unix:///run/redis?password=***&db=1"),
        ("redis://h:6379/0", "redis://h:6379/0"),
    ],
)
def test_of_redis_only_the_password_is_masked(url: str, shown: str) -> None:
    settings = config.load(environ={"LADR_METRICS__REDIS_URL": url})
    assert config.plain(settings)["metrics"]["redis_url"] == shown


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().router.port = 1  # type: ignore[misc]


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=300)))
def test_a_duration_as_it_is_shown_is_read_as_the_same(duration: timedelta) -> None:
    settings = config.load(environ={"LADR_ROUTER__TTL": duration_text(duration)})
    assert settings.router.ttl == duration


def test_what_is_shown_is_a_file_that_means_the_same(file: Path) -> None:
    import yaml

    shown = config.plain(Settings())
    file.write_text(yaml.safe_dump(shown))
    assert config.plain(config.load(file, {})) == shown
