"""The verbs of the `hostguard` command, a file each, or two where they are a pair."""
