"""The service manager: D-Bus, the journal, readiness, and the process that turns are forked from."""
