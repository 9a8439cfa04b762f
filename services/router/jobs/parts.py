"""The jobs of one router, put together from its settings."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from prometheus_client import CollectorRegistry

from ladr.config import ConfigError, JobsSettings
from ladr.routing.router import Router
from services.router.jobs.dispatcher import LEASE_MARGIN, Dispatcher
from services.router.jobs.machine import Limits
from services.router.jobs.metrics import JobsMetrics
from services.router.jobs.service import Jobs
from services.router.jobs.store import Store


@dataclass
class JobParts:
    """What keeps jobs, runs them, and answers for them."""

    store: Store
    dispatcher: Dispatcher
    jobs: Jobs


def make(
    settings: JobsSettings, router: Router, registry: CollectorRegistry, make_id: Callable[[], str]
) -> JobParts | None:
    """None: this router keeps no jobs. Raises: ConfigError: the URL is not one of Redis."""
    if settings.store == "off":
        return None
    store = _store(settings)
    dispatcher = Dispatcher(router, store, settings, JobsMetrics(registry))
    return JobParts(store, dispatcher, Jobs(store, dispatcher, make_id))


def _store(settings: JobsSettings) -> Store:
    limits = Limits(settings.attempts, settings.retention // timedelta(milliseconds=1))
    lease_ms = int(settings.lease / timedelta(milliseconds=1) * LEASE_MARGIN)
    if settings.store == "sqlite":
        from services.router.jobs.sqlite_store import SqliteStore  # each only where it is used

        return SqliteStore(settings.path, limits, lease_ms, settings.max_live, _nonce)
    from services.router.jobs.redis_store import RedisStore

    try:
        url = settings.redis_url.get_secret_value()
        return RedisStore(url, settings.redis_prefix, limits, lease_ms, settings.max_live, _nonce)
    except ValueError:
        raise ConfigError(
            "router.jobs.redis_url (LADR_ROUTER__JOBS__REDIS_URL) is not a Redis URL; give redis://:password@host:6379/0"
        ) from None


def _nonce() -> str:
    return secrets.token_hex(8)
