"""Write the golden values again: ``python -m tests.golden [name ...]``."""

import sys

from tests.golden.recording import rewrite

for line in rewrite(sys.argv[1:]):
    print(line)
