"""The kernel and its file systems: cgroups, processes, disks, pressure stall information."""
