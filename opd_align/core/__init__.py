"""The mathematics: trees, estimators, objectives, alignment and metrics. Pure numpy: no files, no devices."""
