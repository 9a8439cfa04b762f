"""From the name that a request asks for to the models that may answer it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from ladr.config import CascadeSettings, RouterSettings
from ladr.errors import InvalidRequest, NotFound, NoWorker, Overloaded

MAX_SPLITS = 256
MAX_SHARERS = 16
MAX_SHARE = 1e6
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
    splits: dict[str, Mapping[str, float]] = field(init=False)
    _promised: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.splits = dict(self.settings.canaries)
        self._promise()

    def split(self, name: str, shares: Mapping[str, float]) -> None:
        """Share the requests for a name between models from now on; without shares as the settings have it.

        Raises: InvalidRequest: the shares are none. NotFound: a model is not served. Overloaded: too many names.
        """
        if not shares:
            self.splits.pop(name, None)
            self.splits |= {one: kept for one, kept in self.settings.canaries.items() if one == name}
        else:
            self._check(name, shares)
            self.splits[name] = dict(shares)
        self._promise()

    def _check(self, name: str, shares: Mapping[str, float]) -> None:
        if len(shares) > MAX_SHARERS or not all(0 <= share <= MAX_SHARE for share in shares.values()):
            raise InvalidRequest(f"give 1 to {MAX_SHARERS} shares from 0 to {MAX_SHARE:.0e}", field="shares")
        if not any(shares.values()):
            raise InvalidRequest("one share at least must be over 0", field="shares")
        for model, share in shares.items():
            if share and model not in self._promised and not self.knows(model):
                raise NotFound(f"no worker serves {model[:64]!r}", resource=("model", model[:128]))
        if name not in self.splits and len(self.splits) >= MAX_SPLITS:
            raise Overloaded(f"{MAX_SPLITS} names are shared already; set one back first")

    def _promise(self) -> None:
        """Collect the names that the operator knows of: they are unavailable while nobody serves them, never unknown."""
        s = self.settings
        self._promised = {
            s.default_model,
            *s.aliases.values(),
            *self.splits,
            *(name for shares in self.splits.values() for name in shares),
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
        asked = asked or settings.default_model or self._only()
        name = settings.aliases.get(asked, asked)
        if name in self.splits:
            shares = self.splits[name]
            name = rng.choices(list(shares), list(shares.values()))[0]
        if name in settings.cascades:
            cascade = settings.cascades[name]
            return Target(cascade.teacher, settings.fallbacks.get(cascade.teacher, ()), name, cascade.student)
        if name not in self._promised and not self.knows(name):
            if not self.served():
                raise NoWorker("no worker has a model yet", retry_after=_RETRY_AFTER)
            raise NotFound(f"no worker serves {name[:64]!r}", resource=("model", name[:128]))
        return Target(name, settings.fallbacks.get(name, ()))

    def _only(self) -> str:
        """The one model that there is, beside those that take a share of its requests, or of others' none."""
        served = self.served()
        if not served:
            raise NoWorker("no worker has a model yet", retry_after=_RETRY_AFTER)
        if len(served) > 1:
            beside = {
                model
                for name, shares in self.splits.items()
                for model, share in shares.items()
                if model != name and (name in served or not share)
            }
            served = served - beside or served
        if len(served) > 1:
            some = ", ".join(sorted(served)[:8])
            raise InvalidRequest(f"name a model ({some}), or set router.default_model", field="model")
        return next(iter(served))
