"""What all groups of settings have in common."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field

from ladr.config_types import Bytes, Duration, Port


class Section(BaseModel):
    """A group of settings; frozen, and without keys that nobody reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Server(Section):
    """What every server has."""

    host: str = Field("127.0.0.1", description="address to listen on; loopback unless told otherwise")
    http_host: str = Field("", description="address of /metrics to listen on; empty: the same")
    port: Port = Field(0, description="gRPC port; 0 takes a free one")
    http_port: Port = Field(0, description="HTTP port of /metrics; 0 takes a free one")
    max_message_bytes: Bytes = Field(16 << 20, description="largest gRPC message, each way")
    drain_grace: Duration = Field(timedelta(seconds=30), description="how long open streams may finish after SIGTERM")
