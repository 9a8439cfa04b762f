"""`python -m services.router`: one router process, or several on one port."""

from __future__ import annotations

import asyncio

from ladr import config
from services.common.server import run
from services.router import polling, processes
from services.router.app import App


async def main(settings: config.Settings, stop: asyncio.Event) -> None:
    polling.choose(settings.router)
    if settings.router.processes > 1:
        await processes.run(settings.router)
    else:
        await App(settings.router).run(stop)


if __name__ == "__main__":
    run("router", main)
