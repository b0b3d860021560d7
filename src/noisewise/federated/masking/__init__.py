"""Secure aggregation by masks that cancel in the sum (Bonawitz et al. 2017).

State machines for a client and a server, with messages as bytes; no network.
"""

from noisewise.federated.masking.client import MaskingClient
from noisewise.federated.masking.roll import make_roll
from noisewise.federated.masking.server import MaskingServer, unmask
from noisewise.federated.masking.session import (
    Advertisement,
    AggregationError,
    Confirmation,
    MaskedVector,
    Revelation,
    SealedShares,
    Session,
)

__all__ = [
    "Advertisement",
    "AggregationError",
    "Confirmation",
    "MaskedVector",
    "MaskingClient",
    "MaskingServer",
    "Revelation",
    "SealedShares",
    "Session",
    "make_roll",
    "unmask",
]
