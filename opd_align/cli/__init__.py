"""The `opd-align` command line."""
