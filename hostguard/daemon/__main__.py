"""python3 -m hostguard.daemon."""

from hostguard.daemon import main

main()
