"""A proof, by data flow, that a computation keeps the records of a batch apart."""

from noisewise.separation.before import (
    private_memory as private_memory,
    remember_private as remember_private,
)
from noisewise.separation.content import Content, same_bits
from noisewise.separation.draws import Draws as Draws
from noisewise.separation.leaks import Leaks
from noisewise.separation.libraries import GENERAL, general_ways
from noisewise.separation.origin import (
    calling_line as calling_line,
    defined_at as defined_at,
    is_anybodys as is_anybodys,
    is_users as is_users,
    place as place,
)
from noisewise.separation.path import Outside, Path
from noisewise.separation.proof import (
    ESCAPED as ESCAPED,
    FOREIGN as FOREIGN,
    HANDED as HANDED,
    KEPT as KEPT,
    RAISING as RAISING,
    Finding,
    Proof,
)
from noisewise.separation.refusal import RefusedError as RefusedError
from noisewise.separation.returning import noticing_backward_code
from noisewise.separation.shadow import (
    MOST_RECORDS as MOST_RECORDS,
    Cell as Cell,
    Origin,
    Shadow as Shadow,
    broadcast_shapes as broadcast_shapes,
    is_mixed,
    storage_key as storage_key,
)
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
