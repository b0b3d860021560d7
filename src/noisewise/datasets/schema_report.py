"""How well a table fits a schema: counts for whoever holds the data, not for release."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ColumnReport", "SchemaReport"]


@dataclass(frozen=True)
class ColumnReport:
    """Cells of one column that the schema changes."""

    name: str
    kind: str
    clamped: int
    unknown: int
    missing: int


@dataclass(frozen=True)
class SchemaReport:
    """Counts per column; exact, and therefore not private."""

    rows: int
    columns: tuple[ColumnReport, ...]
    private: bool = False

    def share_changed(self, name: str) -> float:
        """Share of a column's cells that are clamped or unknown."""
        for column in self.columns:
            if column.name == name:
                return (column.clamped + column.unknown) / max(1, self.rows)
        raise KeyError(name)

    @property
    def largest_share(self) -> float:
        """Share in the column that the schema changes most."""
        return max((self.share_changed(column.name) for column in self.columns), default=0.0)

    def __str__(self) -> str:
        lines = [
            f"{self.rows} rows. NOT PRIVATE: exact counts of the data; do not publish them, and",
            "do not tune the schema by them.",
            f"{'column':<36} {'kind':<12} {'clamped':>9} {'unknown':>9} {'missing':>9}",
        ]
        for column in self.columns:
            name = column.name if len(column.name) <= 36 else column.name[:35] + "…"
            lines.append(
                f"{name:<36} {column.kind:<12} {column.clamped:>9} {column.unknown:>9} "
                f"{column.missing:>9}"
            )
        return "\n".join(lines)
