"""Trees, estimators, objectives, alignment and metrics. Pure numpy and pyarrow: no files, no devices."""
