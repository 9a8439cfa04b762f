"""Plays a trainer without torch, as a real process: `python played_trainer.py JOB_DIRECTORY`.

It keeps a trainer's contract: progress, a checkpoint at each so many steps, exit code 75 when it is asked to stop, a student
and a report in the end. What it does beside that is said by student.source of its spec: a word, and the step after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ladr.v1.distiller_pb2 import DISTILL_PHASE_TRAIN, DistillProgress
from services.common.int8.notes import Notes
from services.distiller.place import STOPPED, Place, write_whole

STEP_S = 0.02


def main(root: Path) -> int:
    place = Place(root)
    spec = place.read_spec()
    play, _, number = spec.student.source.partition(" ")
    asked: list[int] = []

    def ask(signal_number: int, _: Any) -> None:
        asked.append(signal_number)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if play == "deaf" else ask)
    start = int(os.environ["LADR_DISTILL_START"])
    print(f"begins on {os.environ['LADR_DISTILLER__DEVICES']} with \x1b[31m{play}\x1b[0m")
    if play == "refuse":
        place.write_failure("DATA_EMPTY", "there is nothing in the data: give it lines")
        return 3
    steps = spec.training.steps
    done = _restore(place)
    while done < steps:
        if asked:
            _save(place, done)
            return STOPPED
        time.sleep(STEP_S)
        done += 1
        print(f"step {done}", flush=True)
        _tell(place, done, steps, start)
        if done % spec.training.checkpoint_steps == 0:
            _save(place, done)
        if number and done == int(number):
            _end(play, place, start)
    write_whole(place.student / "model.safetensors", f"trained for {done} steps".encode())
    write_whole(place.report / "report.html", b"<h1>a report</h1>")
    int8 = spec.int8
    if int8.kind != "none":
        notes = Notes(kind=int8.kind, layers=(), kl=0.05, publish=int8.threshold >= 0.05 or int8.publish_above)
        write_whole(place.student_int8 / "int8.json", notes.model_dump_json().encode())
    figures = {"kl": 0.5, "top1": 0.75, "broken": float("nan"), "text": "x"}
    write_whole(place.report / "report.json", json.dumps({"figures": figures, "steps": done}).encode())
    return 0


def _end(play: str, place: Place, start: int) -> None:
    """The end that is asked for, or none."""
    if play == "crash":
        raise RuntimeError("no such luck")
    if play == "killed" or (play == "killed-once" and start == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if play == "chatter":
        for _ in range(200):
            print("x" * 50_000)
    if play == "empty":
        os._exit(0)


def _tell(place: Place, done: int, steps: int, start: int) -> None:
    progress = DistillProgress(
        phase=DISTILL_PHASE_TRAIN, step=done, total_steps=steps, tokens=100 * done, tokens_per_second=5000, start=start
    )
    progress.losses.update({"total": 3 / done, "kl": 2 / done, "odd part": 1.0})
    progress.time.GetCurrentTime()
    progress.remaining.FromMilliseconds(int((steps - done) * STEP_S * 1000))
    place.add_progress(progress)


def _save(place: Place, done: int) -> None:
    write_whole(place.checkpoints / f"step-{done:08d}" / "state.json", json.dumps({"done": done}).encode())


def _restore(place: Place) -> int:
    found = sorted(place.checkpoints.glob("step-*/state.json"))
    return int(json.loads(found[-1].read_bytes())["done"]) if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
