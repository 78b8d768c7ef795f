"""Teachers: contexts, demonstrations, screening, and which questions can be used with which teachers."""
