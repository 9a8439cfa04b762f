"""`python -m services.worker`: one worker process."""

from __future__ import annotations

import asyncio

from ladr import config
from services.common.server import run
from services.worker.app import App


async def main(settings: config.Settings, stop: asyncio.Event) -> None:
    await App(settings.worker).run(stop)


if __name__ == "__main__":
    run("worker", main)
