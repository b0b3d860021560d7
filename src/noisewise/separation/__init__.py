"""A proof, by data flow, that a computation keeps the records of a batch apart."""

from noisewise.separation.before import private_memory, remember_private
from noisewise.separation.content import Content, same_bits
from noisewise.separation.draws import Draws
from noisewise.separation.leaks import Leaks
from noisewise.separation.libraries import GENERAL, general_ways
from noisewise.separation.origin import calling_line, defined_at, is_anybodys, is_users, place
from noisewise.separation.path import Outside, Path
from noisewise.separation.proof import ESCAPED, FOREIGN, KEPT, RAISING, Finding, Proof
from noisewise.separation.refusal import RefusedError
from noisewise.separation.returning import noticing_backward_code
from noisewise.separation.shadow import (
    MOST_RECORDS,
    Cell,
    Origin,
    Shadow,
    broadcast_shapes,
    is_mixed,
    storage_key,
)
from noisewise.separation.threads import noticing_threads
from noisewise.separation.watch import Storages, Watch, storages

__all__ = [
    "ESCAPED",
    "FOREIGN",
    "GENERAL",
    "KEPT",
    "MOST_RECORDS",
    "RAISING",
    "Cell",
    "Content",
    "Draws",
    "Finding",
    "Leaks",
    "Origin",
    "Outside",
    "Path",
    "Proof",
    "RefusedError",
    "Shadow",
    "Storages",
    "Watch",
    "broadcast_shapes",
    "calling_line",
    "defined_at",
    "general_ways",
    "is_anybodys",
    "is_mixed",
    "is_users",
    "noticing_backward_code",
    "noticing_threads",
    "place",
    "private_memory",
    "remember_private",
    "same_bits",
    "storage_key",
    "storages",
]
