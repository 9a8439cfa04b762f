"""Names that are shared between models, and changed while the router runs: the way of a new model into service."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from ladr.errors import InvalidRequest, NotFound, WrongState
from ladr.routing.models import Models
from ladr.v1 import router_pb2
from services.router.tally import Tally

log = structlog.get_logger()


class Splits:
    """GetSplit and SetSplit. `tallies` are by model, and grow on. An alias of the settings is its model here."""

    def __init__(self, models: Models, tallies: Mapping[str, Tally], processes: int) -> None:
        self._models = models
        self._tallies = tallies
        self._processes = processes

    def get(self, name: str) -> router_pb2.Split:
        """Raises: NotFound: the name is not shared; the resource is the model that an alias stands for."""
        name = self._meant(name)
        shares = self._models.splits.get(name)
        if shares is None:
            raise NotFound("this name is not shared between models", resource=("split", name[:128]))
        return self._message(name, shares)

    def set(self, name: str, shares: Mapping[str, float]) -> router_pb2.Split:
        """Raises: InvalidRequest, NotFound, Overloaded, WrongState: as ladr.v1.Router.SetSplit."""
        if self._processes > 1:
            raise WrongState("this router is several processes, and one alone would hear: use router.canaries")
        if not 1 <= len(name.encode()) <= 128:
            raise InvalidRequest("an alias has 1 to 128 bytes", field="alias")
        name = self._meant(name)
        self._models.split(name, shares)
        log.info("split", alias=name, shares=dict(shares))
        return self._message(name, self._models.splits.get(name, {}))

    def _meant(self, name: str) -> str:
        return self._models.settings.aliases.get(name, name)

    def _message(self, name: str, shares: Mapping[str, float]) -> router_pb2.Split:
        tallies = [self._tallies.get(model, Tally()).message(model) for model in sorted(shares)]
        return router_pb2.Split(alias=name, shares=shares, tallies=tallies)
