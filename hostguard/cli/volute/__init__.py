"""hostguard volute: puts the guard in front of a Volute on this host, takes it away, and says how it is."""
