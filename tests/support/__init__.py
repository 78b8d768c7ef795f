"""What several tests share: small models, scripted students, a contract for backends, made-up trainings."""
