"""TRL's trainers with a gate on the distillation loss.

With an open gate, losses, gradients and weights are bit-identical to TRL's (in float32: in half precision, TRL sums
GKD's loss in half precision, these trainers in float32). `denominator` has no default because it decides how fast the
tokens that are kept are learned: "keep" divides by the number of completion tokens of the optimizer step, dropped or
not; "renormalise" by the sum of weights. Both run over all micro-batches and all processes of one optimizer step, so
the step does not depend on how it is split. Evaluation is not gated: its losses stay comparable. The metrics under
`gate/` are listed in `core.metric_registry`.
"""
