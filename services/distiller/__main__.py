"""`python -m services.distiller`: one Distiller process."""

from __future__ import annotations

import asyncio

from ladr import config
from services.common.server import run
from services.distiller.app import App


async def main(settings: config.Settings, stop: asyncio.Event) -> None:
    await App(settings.distiller).run(stop)


if __name__ == "__main__":
    run("distiller", main)
