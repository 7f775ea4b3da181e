"""`python3 -m hostguard.cli` is `hostguard`."""

from hostguard.cli import main

main()
