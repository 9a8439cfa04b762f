"""The student before it has learnt anything, and what it costs.

influence.py   how much each layer of the teacher changes what goes through it
depth.py       some of the teacher's layers
width.py       all layers, narrower
make.py        whichever a job asks for
cost.py        multiply-adds, parameters and bytes, by count
"""

from services.distiller.students.make import Made, make

__all__ = ["Made", "make"]
