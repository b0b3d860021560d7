"""Records in a warehouse: a source that answers one grouped count.

All that a curve needs of its records is how many of them are in each bin. So the table may stay
where it is: an engine counts, and sends back one row for each bin.
"""

from noisewise.ecdf.counted import Counted
from noisewise.ecdf.sources.places import is_url as is_url, open_table, shown as shown
from noisewise.ecdf.sources.tables import Column, Source, column_of, open_source

__all__ = ["Column", "Counted", "Source", "column_of", "open_source", "open_table"]
