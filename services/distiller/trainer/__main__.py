"""`python -m services.distiller.trainer JOB_DIRECTORY`: do the job, or go on with it. Exit status: see `place`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from functools import partial
from pathlib import Path

from ladr.config import load
from ladr.config_distiller import DistillerSettings
from services.common.telemetry import quieten
from services.distiller.place import DONE, FAILED, FULL, STOPPED, Place, disk_full
from services.distiller.refused import Refused
from services.distiller.spec import Spec
from services.distiller.trainer import launch
from services.distiller.trainer.stop import Stop, Stopped

log = logging.getLogger(__name__)


def main() -> int:
    parser = argparse.ArgumentParser(description="Do a distillation job, or go on with it.")
    parser.add_argument("job", type=Path, help="directory with spec.json")
    parser.add_argument("--progress-seconds", type=float, default=1.0, help="least time between two lines of progress")
    arguments = parser.parse_args()
    launch.end_with_parent()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    quieten()
    stop = Stop()
    stop.listen()
    place = Place(arguments.job)
    place.failure.unlink(missing_ok=True)
    spec, settings = place.read_spec(), load().distiller
    if spec.training.processes > 1 and "RANK" not in os.environ:
        command = [sys.executable, "-m", "services.distiller.trainer", *sys.argv[1:]]
        return launch.run(place, spec.training.processes, command, stop)
    return work(place, spec, settings, stop, arguments.progress_seconds)


def work(place: Place, spec: Spec, settings: DistillerSettings, stop: Stop, progress_s: float) -> int:
    """Do the job in this process; the exit status."""
    import torch  # not before it is sure that this process needs it
    import transformers

    from services.distiller.trainer.failures import explain
    from services.distiller.trainer.job import Job
    from services.distiller.trainer.memory import held_bytes
    from services.distiller.trainer.meter import Meter
    from services.distiller.trainer.phases import run
    from services.distiller.trainer.ranks import device_of, join

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(spec.training.threads or settings.threads)
    told = place
    try:
        device = device_of(spec.training.device, settings.devices)
        ranks = join(device)
        told = launch.failure_of(place, ranks.rank) if launch.STORE in os.environ else place
        meter = Meter(place if ranks.first else None, partial(held_bytes, device), progress_s)
        run(Job(place, spec, settings, ranks, device, stop, meter))
    except Stopped:
        log.info("stopped; it goes on from its last checkpoint")
        return STOPPED
    except Exception as error:
        if isinstance(error, Refused):
            log.error("%s: %s", error.reason, error.message)  # no fault of the trainer, so no traceback
        else:
            log.exception("the job failed")
        if stop.requested and spec.training.processes > 1:
            # for want of the others, that had stopped; what is wrong beyond that shows at the next start
            return STOPPED
        return failed(told, *explain(error))
    return DONE


def failed(place: Place, reason: str, message: str) -> int:
    """Leave word of why; the exit status."""
    try:
        place.write_failure(reason, message)
    except OSError as error:
        if disk_full(error):
            return FULL
        raise
    return FAILED


if __name__ == "__main__":
    status = main()
    if status == FULL:
        # the usual way out writes what is left of the log, and where that fails it has a status of its own
        os._exit(FULL)
    sys.exit(status)
