"""A public schema for every table, written from its documentation and not from its rows.

Each module says where its ranges come from. Where no range is documented it has a round,
generous one from general knowledge of the subject, and says so.
"""

from __future__ import annotations

from noisewise.datasets.schema import Schema
from noisewise.datasets.schemas.census import ADULT, CALIFORNIA, CALIFORNIA_RAW
from noisewise.datasets.schemas.finance import BANK, DEFAULT_CREDIT, GERMAN
from noisewise.datasets.schemas.health import DIABETES, FRAMINGHAM, WDBC
from noisewise.datasets.schemas.life import NURSERY, STUDENTS, WINE
from noisewise.datasets.schemas.permissions import NATICUSDROID
from noisewise.errors import DatasetError

__all__ = ["schema_for"]

_SCHEMAS = {
    "adult": ADULT,
    "bank_marketing": BANK,
    "breast_cancer_wdbc": WDBC,
    "california_housing": CALIFORNIA,
    "california_housing_raw": CALIFORNIA_RAW,
    "default_credit": DEFAULT_CREDIT,
    "diabetes130": DIABETES,
    "framingham": FRAMINGHAM,
    "german_credit": GERMAN,
    "naticusdroid": NATICUSDROID,
    "nursery": NURSERY,
    "students_dropout": STUDENTS,
    "wine_quality_red": WINE,
    "wine_quality_white": WINE,
}


def schema_for(name: str) -> Schema:
    """Return the public schema of a table that noisewise knows."""
    if name not in _SCHEMAS:
        raise DatasetError(
            f"there is no schema for {name!r}; tables with one: {', '.join(sorted(_SCHEMAS))}"
        )
    return _SCHEMAS[name]
