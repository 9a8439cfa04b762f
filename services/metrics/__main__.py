"""`python -m services.metrics`: one MetricsBus process."""

from __future__ import annotations

import asyncio

from ladr import config
from services.common.server import run
from services.metrics.app import App


async def main(settings: config.Settings, stop: asyncio.Event) -> None:
    await App(settings.metrics).run(stop)


if __name__ == "__main__":
    run("metrics", main)
