"""The settings of the Distiller."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ladr.config_base import Server
from ladr.config_types import Address, AsNames, Duration, Port


class DistillerSettings(Server):
    """Settings of the Distiller and of the trainer processes that it starts."""

    port: Port = Field(50053, description="gRPC port; 0 takes a free one")
    http_port: Port = Field(9092, description="HTTP port of /metrics; 0 takes a free one")
    state: Path = Field(Path("distill"), description="directory of jobs: their data base, checkpoints, logs, reports")
    model_root: Path = Field(Path("models"), description="directory that models are read from, and students go to")
    data_root: Path = Field(Path("data"), description="directory that data is read from")
    allow_hub: bool = Field(False, description="let a model's source be a hub name, which is downloaded")
    router: Address | None = Field(None, description="address of a router: for answers, judges and roll-outs")
    devices: Annotated[tuple[str, ...], AsNames] = Field(
        (), description="devices that jobs may use, one job at a time on each: cpu, cuda:0; empty: those that are there"
    )
    threads: int = Field(2, gt=0, le=1024, description="processor threads of a trainer process")
    max_waiting: int = Field(100, ge=0, description="jobs that may wait for a device")
    max_watchers: int = Field(256, gt=0, description="most WatchDistillJob streams at once")
    stop_grace: Duration = Field(
        timedelta(seconds=30), description="how long a trainer may take to write a checkpoint when it is stopped"
    )
