"""Temperature scaling (Guo et al., 2017): one number that repairs over-confidence.

Logits are divided by T > 0, which changes no prediction. T minimises the NLL on records that
were not trained on. Those records must be public: T is a function of them, and nothing here
adds noise. With b = 1/T the NLL is convex, with derivative mean(E_p[z] - z_y); its root is
found by bisection, so there is no step size and no local minimum.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax

from noisewise.analysis.calibration.metrics import negative_log_likelihood
from noisewise.analysis.inputs import FloatArray, IntArray, as_labels, as_logits

__all__ = ["Temperature", "fit_temperature"]

#: Temperatures that are searched; beyond them the records do not determine one.
LOWEST, HIGHEST = 1e-3, 1e3


@dataclass(frozen=True)
class Temperature:
    """A temperature, and the NLL before and after on the records it was fitted to."""

    value: float
    nll_before: float
    nll_after: float

    def __call__(self, logits: Any) -> Any:
        """Return logits of the same kind (array or tensor) divided by the temperature."""
        return logits / self.value


def fit_temperature(logits: Any, labels: Any) -> Temperature:
    """Fit a temperature on public records.

    Parameters
    ----------
    logits, labels : array or tensor
        Records x classes, and class indices. They must be public, or already covered by the
        guarantee you state: the result depends on them without noise.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.tile([0.0, 4.0], (100, 1))
    >>> fitted = fit_temperature(logits, [1] * 73 + [0] * 27)
    >>> round(fitted.value, 2)  # log(0.73 / 0.27) is 0.99, not 4
    4.02
    """
    z = as_logits(logits)
    truth = as_labels(labels, z.shape[1], z.shape[0])
    low, high = np.log(1 / HIGHEST), np.log(1 / LOWEST)
    if _slope(z, truth, low) >= 0:
        value = HIGHEST
        _warn("no temperature makes these logits better than a uniform guess", value)
    elif _slope(z, truth, high) <= 0:
        value = LOWEST
        _warn("the true class has the largest logit in every record", value)
    else:
        value = float(np.exp(-brentq(lambda t: _slope(z, truth, t), low, high, xtol=1e-12)))
    return Temperature(
        value,
        nll_before=negative_log_likelihood(z, truth, logits=True),
        nll_after=negative_log_likelihood(z / value, truth, logits=True),
    )


def _slope(z: FloatArray, labels: IntArray, log_inverse: float) -> float:
    """Derivative of the NLL by 1/T."""
    # Centred on the largest logit, so that the difference keeps its digits for large logits.
    centred = z - z.max(1, keepdims=True)
    probabilities = softmax(centred * np.exp(log_inverse), axis=1)
    true = np.take_along_axis(centred, labels[:, None], axis=1)[:, 0]
    return float(((probabilities * centred).sum(1) - true).mean())


def _warn(reason: str, value: float) -> None:
    warnings.warn(
        f"{reason}: the records determine no temperature, {value:g} is used",
        RuntimeWarning,
        stacklevel=3,
    )
