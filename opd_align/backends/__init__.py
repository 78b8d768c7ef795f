"""Where rollouts and probabilities come from: one module for each way to sample and/or score.

A backend knows `opd_align.types` and its own library, and no other backend. Nothing is imported here, so
that choosing one backend never loads another's dependencies.
"""
