"""TRL's trainers with a gate on the distillation loss."""
