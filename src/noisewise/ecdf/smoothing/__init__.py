"""Post-processing of noisy curves into monotone ones. It costs no privacy."""

from noisewise.ecdf.smoothing.interior_point import compiled_available, smooth_tree
from noisewise.ecdf.smoothing.isotonic import smooth_isotonic

__all__ = ["compiled_available", "smooth_isotonic", "smooth_tree"]
