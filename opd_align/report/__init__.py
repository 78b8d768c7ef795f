"""Tables, HTML report and dashboard: everything here displays what `core.metrics` computed and computes nothing."""
