"""Secret sharing: numbers cut into pieces that say nothing alone.

>>> import numpy as np
>>> from noisewise.federated.sharing import additive
>>> shares = additive.share(np.array([3, -1]), 3)
>>> additive.combine(shares).tolist()
[3, -1]
"""

from noisewise.federated.sharing import additive, shamir

__all__ = ["additive", "shamir"]
