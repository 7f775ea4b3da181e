"""The guard in front of a running Volute: nftables redirects what comes to the ports of its minds."""
