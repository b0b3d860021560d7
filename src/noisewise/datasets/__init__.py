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
from noisewise.datasets.reading import read_table
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
