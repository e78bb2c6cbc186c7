"""Code walked along its paths: statements, calls, values, events."""
