"""A roll-out as it is kept, and as the contract tells of it. All times are Unix milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from google.protobuf.json_format import Parse

from ladr.v1 import distiller_pb2 as pb
from services.distiller.rollout.core import Rules, Standing
from services.distiller.rollout.counts import NOTHING, Counts, Times
from services.distiller.rollout.request import rules

State = Literal["loading", "running", "succeeded", "rolled_back", "cancelled"]
STATES: Final[tuple[State, ...]] = ("loading", "running", "succeeded", "rolled_back", "cancelled")
LIVE: Final[frozenset[State]] = frozenset({"loading", "running"})
Shares = Mapping[str, float]
_NUMBERS: Mapping[State, Any] = {state: pb.RolloutState.Value(f"ROLLOUT_STATE_{state.upper()}") for state in STATES}


@dataclass(frozen=True, slots=True)
class Record:
    """A roll-out.

    Attributes:
        asked: the request, whole, as JSON. digest: of the request as it came.
        split: the name that is shared at the router: `name`, or what it is an alias of.
        before: its shares when the roll-out began; None: it was not shared.
        others: the models that the student replaces, with their shares.
        source: the student's place under the model root.
        loaded: the workers that were asked to load it, from just before they were.
        stage, stage_ms: where it is, and when the router was first told so; 0: not yet.
        applied: the router has been told.
        ending: how it is to end, from ending_ms on; "": it goes on. restored: the others have all the requests again.
        seen: counters by model as they were read last. student, those, earlier: see core.Standing.
    """

    id: str
    asked: str
    digest: str
    split: str
    others: Shares
    source: str
    created_ms: int
    changed_ms: int
    request_id: str = ""
    before: Shares | None = None
    state: State = "loading"
    reason: str = "workers load the student"
    loaded: tuple[str, ...] = ()
    stage: int = 0
    stage_ms: int = 0
    share: float = 0.0
    applied: bool = False
    ending: Literal["", "rolled_back", "cancelled"] = ""
    ending_ms: int = 0
    restored: bool = False
    seen: Mapping[str, Counts] = field(default_factory=dict)
    student: Counts = NOTHING
    those: Counts = NOTHING
    earlier: Counts = NOTHING

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def request(self) -> pb.PublishStudentRequest:
        return Parse(self.asked, pb.PublishStudentRequest())

    @property
    def rules(self) -> Rules:
        return rules(self.request)

    @property
    def model(self) -> str:
        """Served name of the student."""
        return self.request.model

    @property
    def mark(self) -> str:
        """A name of its own at the router, shared from the beginning to the end: where it is gone, the router began anew."""
        return f"rollout-{self.id}"

    @property
    def marked(self) -> dict[str, float]:
        """The shares of the mark: nothing for the student, by which the router knows that it stands beside others."""
        return {**dict.fromkeys(self.others, 1.0), self.model: 0.0}

    @property
    def standing(self) -> Standing:
        return Standing(self.stage, self.stage_ms / 1000, self.student, self.those, self.earlier)

    def shares(self, stage: int) -> dict[str, float]:
        """What the router is told in a stage. The others share the rest among them as they did before."""
        share = self.rules.stages[stage]
        whole = sum(self.others.values())
        return {**{model: (1 - share) * one / whole for model, one in self.others.items()}, self.model: share}


def dump(record: Record) -> str:
    return json.dumps(asdict(record), separators=(",", ":"))


def load(text: str) -> Record:
    fields = json.loads(text)
    for side in ("student", "those", "earlier"):
        fields[side] = _counts(fields[side])
    fields["seen"] = {model: _counts(seen) for model, seen in fields["seen"].items() if _has_times(seen)}
    fields["loaded"] = tuple(fields["loaded"])
    return Record(**fields)


def _counts(fields: Mapping[str, Any]) -> Counts:
    """A side as it was kept; one that was kept before times were logarithms comes without times."""
    times = (Times(**fields[one]) for one in ("first_tokens", "output_tokens")) if _has_times(fields) else ()
    return Counts(fields["succeeded"], fields["failed"], *times)


def _has_times(fields: Mapping[str, Any]) -> bool:
    return "output_tokens" in fields


def told(record: Record) -> pb.Rollout:
    """As the contract has it."""
    made = pb.Rollout(
        id=record.id,
        request=record.request,
        state=_NUMBERS[record.state],
        stage=record.stage,
        share=record.share,
        student=_tally(record.student),
        others=_tally(record.those),
        reason=record.reason,
    )
    made.created_at.FromMilliseconds(record.created_ms)
    made.changed_at.FromMilliseconds(record.changed_ms)
    return made


def _tally(counts: Counts) -> pb.RolloutTally:
    made = pb.RolloutTally(succeeded=counts.succeeded, failed=counts.failed)
    if (first_s := counts.first_tokens.mean_s) is not None:
        made.time_to_first_token.FromTimedelta(timedelta(seconds=first_s))
    if (token_s := counts.output_tokens.mean_s) is not None:
        made.time_per_output_token.FromNanoseconds(round(1e9 * token_s))
    return made
