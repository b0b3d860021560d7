"""Golden runs: seeded results that must stay equal to the bit while the code changes its shape.

``catalogue`` says what is run, ``recording`` how a result is written down and compared,
``values.json`` holds the results. ``python -m tests.golden`` writes the file again; whoever does
so says in the commit which values changed, and why.
"""
