"""Studies: from a configuration to objects, a plan, and a run on one machine or a Ray cluster."""
