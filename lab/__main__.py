"""`python -m lab` is `lab`."""

from lab.cli.main import main

main()
