"""A proof, by data flow, that a computation keeps the records of a batch apart."""

from noisewise.separation.content import Content, same_bits
from noisewise.separation.leaks import Leaks
from noisewise.separation.libraries import GENERAL, general_ways
from noisewise.separation.path import Outside, Path
from noisewise.separation.proof import Finding, Proof
from noisewise.separation.returning import noticing_backward_code
from noisewise.separation.shadow import Origin, is_mixed
from noisewise.separation.threads import noticing_threads
from noisewise.separation.watch import Storages, Watch, storages

__all__ = [
    "GENERAL",
    "Content",
    "Finding",
    "Leaks",
    "Origin",
    "Outside",
    "Path",
    "Proof",
    "Storages",
    "Watch",
    "general_ways",
    "is_mixed",
    "noticing_backward_code",
    "noticing_threads",
    "same_bits",
    "storages",
]
