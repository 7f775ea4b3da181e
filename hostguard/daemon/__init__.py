"""hostguardd."""

from hostguard.daemon.guard import main as main
from hostguard.daemon.parts import Parts as Parts
