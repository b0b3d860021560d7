"""Which mechanism for quantiles."""
from __future__ import annotations
import math
from typing import NamedTuple
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms import plan
from noisewise.privacy.relation import Relation
MECHANISMS = ("exponential", "search", "curve")
class Sizes(NamedTuple):
    many: int
    epsilon: float
    relation: str
def units_of_noise(sizes):
    rel=Relation.of(sizes.relation); b=Budget(sizes.epsilon)
    levels=sizes.many.bit_length()
    from noisewise.ecdf.search import CELLS, MOST_CELLS
    cells=min(CELLS, MOST_CELLS//sizes.many)*sizes.many
    return {"exponential": levels*(1 if levels==1 else 1)/sizes.epsilon, "search": math.sqrt(plan(cells,rel,b).mean_variance), "curve": math.sqrt(plan(2**15,rel,b).mean_variance)}
