"""The trainer: a process that does one job, from its spec to its student, and may be killed at any time.

1. `__main__` reads spec.json; with `training.processes` it starts as many of itself (`launch`), which join up (`ranks`)
2. `prepare` checks the data, loads the teacher and makes the student
3. `teach` stores the teacher's most likely tokens, if the objective asks for that
4. `train` takes its steps; what it knows is written down now and then (`checkpoint`)
5. `save` writes the student
6. `quantize` makes it int8 and repairs that, if the job asks for it
7. `evaluate` measures it and writes the report, part by part: `agreeing`, `answering`, `arena`, `refusing`, `racing`

A phase is a function of the `Job`; it finds out by itself what an earlier start has done already. `meter` says how far the job
is, and `failures` what went wrong.
"""
