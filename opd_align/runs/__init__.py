"""Run directories: what is on disk, how it gets there, and how a run is executed."""
