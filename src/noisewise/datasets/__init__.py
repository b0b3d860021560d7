"""Datasets, verified by checksum, and public schemas that turn tables into numbers.

``load("adult")`` finds or downloads a dataset; its ``schema`` encodes rows by ranges and
categories that are public, with a certified bound on the norm of every encoded row.
"""

from noisewise.datasets.cells import SchemaError
from noisewise.datasets.columns import (
    Binary,
    Categorical,
    CodeRanges,
    Column,
    Drop,
    Numeric,
    Ordinal,
)
from noisewise.datasets.columns_by_rule import Date, Identifier, YesNo
from noisewise.datasets.content import Images, Table, content_hash
from noisewise.datasets.download import Transfer
from noisewise.datasets.drafting import draft_schema
from noisewise.datasets.file_format import FileFormat
from noisewise.datasets.loading import load, load_images, load_table
from noisewise.datasets.places import (
    cache_folder as cache_folder,
    find_file as find_file,
    read_verified as read_verified,
)
from noisewise.datasets.preflight import (
    LOOKED as LOOKED,
    Look as Look,
    look_at as look_at,
    look_at_budget as look_at_budget,
    look_at_columns as look_at_columns,
    look_at_names as look_at_names,
    look_at_names_alone as look_at_names_alone,
    look_at_numbers as look_at_numbers,
    look_at_rows as look_at_rows,
    look_at_target as look_at_target,
)
from noisewise.datasets.reading import (
    read_cells as read_cells,
    read_table,
    text_numbers as text_numbers,
)
from noisewise.datasets.registry import DatasetInfo, info, list_datasets
from noisewise.datasets.schema import Schema
from noisewise.datasets.schema_report import ColumnReport, SchemaReport
from noisewise.datasets.schemas import schema_for

__all__ = [
    "Binary",
    "Categorical",
    "CodeRanges",
    "Column",
    "ColumnReport",
    "DatasetInfo",
    "Date",
    "Drop",
    "FileFormat",
    "Identifier",
    "Images",
    "Numeric",
    "Ordinal",
    "Schema",
    "SchemaError",
    "SchemaReport",
    "Table",
    "Transfer",
    "YesNo",
    "content_hash",
    "draft_schema",
    "info",
    "list_datasets",
    "load",
    "load_images",
    "load_table",
    "read_table",
    "schema_for",
]
