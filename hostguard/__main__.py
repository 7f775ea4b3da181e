"""`python3 -m hostguard` is `hostguard`."""

from hostguard.cli import main

main()
