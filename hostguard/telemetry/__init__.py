"""What happened and how it is reported: events, counters, the timeline, the report."""
