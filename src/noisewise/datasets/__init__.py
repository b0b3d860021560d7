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
from noisewise.datasets.content import Images, Table, content_hash
from noisewise.datasets.download import Transfer
from noisewise.datasets.loading import load, load_images, load_table
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
    "Drop",
    "Images",
    "Numeric",
    "Ordinal",
    "Schema",
    "SchemaError",
    "SchemaReport",
    "Table",
    "Transfer",
    "content_hash",
    "info",
    "list_datasets",
    "load",
    "load_images",
    "load_table",
    "schema_for",
]
