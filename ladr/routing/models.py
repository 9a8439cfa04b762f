"""From the name that a request asks for to the models that may answer it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from ladr.config import CascadeSettings, RouterSettings
from ladr.errors import InvalidRequest, NotFound, NoWorker

_RETRY_AFTER = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Target:
    """What answers: a model, others in order if nobody can take it there, and a cascade if one stands before it."""

    model: str
    fallbacks: tuple[str, ...] = ()
    cascade: str = ""
    student: str = ""


@dataclass
class Models:
    """Names of the settings over what the fleet serves.

    Args: knows: whether a worker has a model of this name, ready or not. served: all names that workers have.
    """

    settings: RouterSettings
    knows: Callable[[str], bool]
    served: Callable[[], frozenset[str]]
    _promised: set[str] = field(init=False)

    def __post_init__(self) -> None:
        """Collect the names that the operator knows of: they are unavailable while nobody serves them, never unknown."""
        s = self.settings
        self._promised = {
            s.default_model,
            *s.aliases.values(),
            *s.canaries,
            *(name for shares in s.canaries.values() for name in shares),
            *s.fallbacks,
            *(name for names in s.fallbacks.values() for name in names),
            *s.cascades,
            *(name for cascade in s.cascades.values() for name in (cascade.student, cascade.teacher)),
        } - {""}

    def cascade(self, name: str) -> CascadeSettings:
        return self.settings.cascades[name]

    def resolve(self, asked: str, rng: Random) -> Target:
        """What a request for `asked` gets.

        Raises: NotFound: nobody has it, and it is no alias. InvalidRequest: it names none, and there is no default.
        NoWorker: there is no model at all yet.
        """
        settings = self.settings
        name = settings.aliases.get(asked or settings.default_model, asked or settings.default_model)
        if name in settings.canaries:
            shares = settings.canaries[name]
            name = rng.choices(list(shares), list(shares.values()))[0]
        if name in settings.cascades:
            cascade = settings.cascades[name]
            return Target(cascade.teacher, settings.fallbacks.get(cascade.teacher, ()), name, cascade.student)
        name = name or self._only()
        if name not in self._promised and not self.knows(name):
            if not self.served():
                raise NoWorker("no worker has a model yet", retry_after=_RETRY_AFTER)
            raise NotFound(f"no worker serves {name[:64]!r}", resource=("model", name[:128]))
        return Target(name, settings.fallbacks.get(name, ()))

    def _only(self) -> str:
        """The one model that there is."""
        served = self.served()
        if not served:
            raise NoWorker("no worker has a model yet", retry_after=_RETRY_AFTER)
        if len(served) > 1:
            raise InvalidRequest(f"name a model: {', '.join(sorted(served)[:8])}", field="model")
        return next(iter(served))
