"""Post-processing of noisy curves into monotone ones. It costs no privacy."""

from noisewise.ecdf.smoothing.interior_point import compiled_available, smooth_tree
from noisewise.ecdf.smoothing.isotonic import smooth_isotonic
from noisewise.ecdf.smoothing.shrinkage import shrink_families

__all__ = ["compiled_available", "shrink_families", "smooth_isotonic", "smooth_tree"]
