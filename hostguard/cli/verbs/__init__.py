"""The verbs of the `hostguard` command, a file each."""
