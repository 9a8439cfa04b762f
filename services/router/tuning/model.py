"""What is believed of the objective: a Gaussian process over (parameters, load), from scikit-learn.

Source: Snoek et al. 2012, "Practical Bayesian Optimization of Machine Learning Algorithms"; Krause & Ong 2011, "Contextual
Gaussian Process Bandit Optimization".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from threadpoolctl import threadpool_limits

Array = NDArray[np.float64]
_REFIT = 20  # new samples after which also the kernel's own parameters are learnt anew


class Model:
    """Mean and deviation of the objective anywhere, from samples; Matérn 5/2 with a length for each dimension, and white noise.

    Runs on one thread of BLAS: with its default a fit of 200 points takes seconds instead of milliseconds.
    """

    def __init__(self, dimensions: int) -> None:
        self._kernel: Any = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(
            [0.5] * dimensions, length_scale_bounds=(0.05, 10.0), nu=2.5
        ) + WhiteKernel(0.1, (1e-4, 2.0))
        self._gp: Any = None
        self._learnt = 0

    def fit(self, points: Sequence[Sequence[float]], values: Sequence[float], total: int) -> None:
        """Take these samples (all that count, points in [0, 1]); `total`: how many there ever were."""
        learns = total - self._learnt >= _REFIT or self._gp is None
        with threadpool_limits(1):
            self._gp = GaussianProcessRegressor(
                self._kernel, normalize_y=True, optimizer="fmin_l_bfgs_b" if learns else None
            )
            self._gp.fit(np.asarray(points), np.asarray(values))
        self._kernel = self._gp.kernel_
        if learns:
            self._learnt = total

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Mean and deviation at each point [n, dimensions], in the objective's unit."""
        with threadpool_limits(1):
            mean, deviation = self._gp.predict(points, return_std=True)
        return mean, deviation
