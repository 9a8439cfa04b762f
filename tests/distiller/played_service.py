"""`python -m services.distiller` with the played trainer."""

from __future__ import annotations

import asyncio

from ladr import config
from services.common.server import run
from services.distiller.app import App
from tests.distiller.distillers import PLAYED


async def main(settings: config.Settings, stop: asyncio.Event) -> None:
    await App(settings.distiller, PLAYED).run(stop)


if __name__ == "__main__":
    run("distiller", main)
