"""`python -m services.router`: one router process."""

from __future__ import annotations

import asyncio

from ladr import config
from services.common.server import run
from services.router.app import App


async def main(settings: config.Settings, stop: asyncio.Event) -> None:
    await App(settings.router).run(stop)


if __name__ == "__main__":
    run("router", main)
