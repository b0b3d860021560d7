"""Renyi divergences of those events for which dp-accounting has a formula.

It has one for the Poisson-sampled Gaussian under add-remove (Mironov, Talwar, Zhang 2019), for the
Gaussian and for the Laplace mechanism.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from absl import logging
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from noisewise.privacy.events.base import Array

__all__ = ["SLACK", "divergences_of"]

#: Quadrature and rounding error of the logarithm of a moment, with room to spare. Where a
#: record hardly matters, dp-accounting's own rounding (measured: up to 1e-14 too small) can
#: make a divergence negative, which its conversion would read as epsilon 0.
SLACK = 1e-11


def divergences_of(event: Any, orders: tuple[float, ...]) -> Array:
    """Return upper bounds of the divergences of one of dp-accounting's events.

    Its Gaussian and Laplace events refer to the sensitivity under whatever relation, exactly as
    ours do, so add-remove, its default, is the right setting for both.
    """
    accountant = rdp.RdpAccountant(orders=orders)
    with _quiet():
        accountant.compose(event)
    divergences = np.maximum(np.asarray(accountant.rdp, dtype=np.float64), 0.0)
    return divergences + SLACK / (np.array(orders) - 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the notice that a fractional order did not converge and was left out.

    Leaving an order out can only raise epsilon, so users have nothing to act on.
    """
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
