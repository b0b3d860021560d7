"""``python -m noisewise`` is the command ``noisewise``."""

from noisewise.cli import main

main()
