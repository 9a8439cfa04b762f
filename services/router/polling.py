"""How gRPC waits for the network in this process: its EventEngine (the default), or the older poller.

The older one takes less processor time for paced streams and is an experiment of gRPC's own, to be named in the environment
before gRPC is loaded. So the process starts itself anew with it, and only if a call to itself works so in this version of gRPC.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from ladr.config import RouterSettings
from services.common.server import CannotStart

EXPERIMENTS = "GRPC_EXPERIMENTS"
OLDER = "-event_engine_client,-event_engine_listener"
_TRY_S = 20.0


def choose(settings: RouterSettings) -> None:
    """Start this process anew with the older poller if the settings want it; returns in the new one, and if they do not.

    Raises: CannotStart: it does not work.
    """
    if settings.event_engine == "on" or EXPERIMENTS in os.environ:
        return
    environment = {**os.environ, EXPERIMENTS: OLDER}
    argv = [sys.executable, "-m", "services.router.polling"]
    try:
        subprocess.run(argv, env=environment, timeout=_TRY_S, check=True)  # noqa: S603  # ourselves
    except subprocess.SubprocessError:
        raise CannotStart("router.event_engine: off does not work with this version of gRPC; leave it out") from None
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606  # ourselves; no shell


async def _call_itself() -> None:
    import grpc

    async def echo(request: bytes, context: object) -> bytes:
        return request

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ladr.Echo", {"Echo": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(3):
            await channel.unary_unary("/ladr.Echo/Echo")(b"x", timeout=5)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(_call_itself())
