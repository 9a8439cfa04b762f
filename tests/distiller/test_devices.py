"""Which job gets which device: against the rule itself, one device at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.distiller.devices import assign, eligible, enough, present
from services.distiller.machine import Job

GPUS = ("cuda:0", "cuda:1", "cuda:2")
jobs = st.lists(
    st.builds(
        lambda device, processes: (device, processes),
        st.sampled_from(["", "cpu", "cuda", "cuda:1"]),
        st.integers(1, 4),
    ),
    max_size=6,
)


def made(asked: list[tuple[str, int]]) -> list[Job]:
    return [Job(str(n), "{}", "d", n, n, device=device, processes=count) for n, (device, count) in enumerate(asked)]


@given(jobs, st.sets(st.sampled_from([*GPUS, "cpu"])), st.sampled_from([("cpu",), GPUS, (*GPUS, "cpu")]))
def test_no_device_is_given_twice_and_no_job_passes_one_that_waits_for_the_same(
    asked: list[tuple[str, int]], free: set[str], devices: tuple[str, ...]
) -> None:
    waiting = [job for job in made(asked) if enough(job.device, job.processes, devices)]
    free &= set(devices)
    begun = dict(assign(waiting, sorted(free), devices))
    given_out = [device for taken in begun.values() for device in taken]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= free
    for at, job in enumerate(waiting):
        fit = set(eligible(job.device, devices))
        if job in begun:
            assert set(begun[job]) <= fit
            assert len(begun[job]) == (1 if fit == {"cpu"} else job.processes)
            assert not any(
                set(eligible(earlier.device, devices)) & set(begun[job])
                for earlier in waiting[:at]
                if earlier not in begun
            )
        else:
            before = {device for earlier in waiting[:at] for device in begun.get(earlier, ())}
            held = {
                device
                for earlier in waiting[:at]
                if earlier not in begun
                for device in eligible(earlier.device, devices)
            }
            assert len(fit & (free - before - held)) < (1 if fit == {"cpu"} else job.processes)


def test_a_job_that_names_none_gets_a_gpu_where_there_is_one() -> None:
    assert eligible("", ("cpu", "cuda:0")) == ["cuda:0"]
    assert eligible("", ("cpu",)) == ["cpu"]
    assert eligible("cuda", ("cpu",)) == []
    assert eligible("cpu", GPUS) == []


def test_each_process_has_a_gpu_and_on_the_processor_they_share_it() -> None:
    assert enough("", 3, GPUS)
    assert not enough("", 4, GPUS)
    assert not enough("cuda:1", 2, GPUS)
    assert enough("cpu", 4, (*GPUS, "cpu"))
    assert not enough("tpu", 1, GPUS)


@pytest.mark.parametrize("shown", ["", "-1", " "])
def test_hidden_gpus_are_not_there(shown: str) -> None:
    assert present({"CUDA_VISIBLE_DEVICES": shown}) == ("cpu",)
