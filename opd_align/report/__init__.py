"""Reports: what people look at. This floor draws what `metrics` computed and computes nothing itself."""
