"""Roll-outs as they are kept."""

from __future__ import annotations

import json

from services.distiller.rollout.counts import Counts, Times
from services.distiller.rollout.record import Record, dump, load


def test_a_rollout_that_was_kept_before_times_were_logarithms_goes_on_without_its_times() -> None:
    now = Counts(40, 2, Times(40, -90.0, 210.0), Times(39, -150.0, 600.0))
    record = Record(
        "1", "{}", "", "chat", {"chat": 1.0}, "students/1", 1, 1, seen={"chat": now}, student=now, those=now
    )
    assert load(dump(record)) == record
    kept = json.loads(dump(record))
    old = {"succeeded": 40, "failed": 2, "first_tokens": 40, "first_tokens_s": 4.2}
    kept |= {"seen": {"chat": old}, "student": old, "those": old, "earlier": old}
    found = load(json.dumps(kept))
    assert found.student == found.those == found.earlier == Counts(40, 2)
    assert found.seen == {}  # what comes before the next reading is not counted: nobody knows its times
