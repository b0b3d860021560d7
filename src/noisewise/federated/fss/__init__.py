"""Function secret sharing: a record becomes two short keys that say nothing alone.

Two servers evaluate their keys wherever they like, as often as they like; their results are
additive shares over Z_2^64 of a point function (one in a single cell) or of a comparison
function (one from a threshold on); checked point functions are shared in a field. Boyle, Gilboa
and Ishai (2016), with seeds of 128 bits.
"""

from noisewise.federated.fss.checked import Challenge, CheckedKeys, accepted, generate_checked
from noisewise.federated.fss.comparison import ComparisonKeys, generate_comparison
from noisewise.federated.fss.point import PointKeys, generate_point
from noisewise.federated.fss.wire import KeyFormatError, key_bytes

__all__ = [
    "Challenge",
    "CheckedKeys",
    "ComparisonKeys",
    "KeyFormatError",
    "PointKeys",
    "accepted",
    "generate_checked",
    "generate_comparison",
    "generate_point",
    "key_bytes",
]
