"""Options that every gRPC channel and server of LADR has."""

from __future__ import annotations

DEFAULT_ADDRESS = "127.0.0.1:50051"
DISTILLER_ADDRESS = "127.0.0.1:50053"
BUS_MESSAGE_BYTES = 128 << 20  # a full fleet in one update
MAX_MESSAGE_BYTES = 16 << 20  # a prompt of millions of tokens


def channel_options(max_message_bytes: int = MAX_MESSAGE_BYTES) -> list[tuple[str, int]]:
    """Sizes, each way, and a keepalive that finds a frozen peer within 15 s."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def client_options(max_message_bytes: int = MAX_MESSAGE_BYTES) -> list[tuple[str, int]]:
    """As `channel_options`, and a server that comes back is found within a second, not after two minutes."""
    return [
        *channel_options(max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
    ]
