"""The replay of the incident: three heartbeats in one second, and a message that wakes twelve minds.

The turns run as plain processes, then under the guard with a global cap of 2, on the same device, while a
bystander process writes 4 KiB now and then. On the card of packaging/quickstart, which can be stopped, they
run a third time, and the card stops meanwhile.

    plan        pure   the minds, and the command of a turn
    results     pure   turns, phases, percentiles, failed promises
    draw        pure   timelines and tables as text, the JSON
    host               the changes to the host and their undoing; Ctrl-C between two of them, not during one
    watch              the process that measures the delay, the guard's events, the live scopes
    phases             what runs
    view               output while it runs
"""
