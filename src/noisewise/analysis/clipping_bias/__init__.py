"""What bounding does to the gradient, beside the noise: diagnostics that are NOT PRIVATE."""

from noisewise.analysis.clipping_bias.callback import BiasCallback
from noisewise.analysis.clipping_bias.measure import (
    GroupBias,
    Measurement,
    boundary_layers,
    measure,
)
from noisewise.analysis.clipping_bias.series import BiasSeries

__all__ = ["BiasCallback", "BiasSeries", "GroupBias", "Measurement", "boundary_layers", "measure"]
