"""Where rollouts and probabilities come from: one module for each way to sample or score.

Nothing is imported here, so that choosing one backend never loads another one's dependencies.
"""
