"""The incident, replayed: three heartbeats in one second, and a message that wakes twelve minds.

First as plain processes, then under the guard with a global cap of 2, on the same device, with a bystander
who only wants to write 4 KiB now and then. On a card that can be stopped, which packaging/quickstart has, a
third time, and the card stands still meanwhile. What is drawn, counted and judged is pure; what acts is not:

    plan      pure   who takes part, what a turn runs
    results   pure   turns, phases, percentiles, the verdict
    draw      pure   timelines and tables as text, the JSON
    host             what is changed on the host, and its undoing
    bystander        the process that feels it
    plain, guarded, stopped   the phases
    view             what is shown while they run
    signals          Ctrl-C that does not tear a change in half
"""
