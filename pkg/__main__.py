"""`python -m pagetrail` is the command `pagetrail`."""

from pagetrail.cli import main

main()
