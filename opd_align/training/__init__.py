"""The room that knows TRL: the callback that watches a training, and what it borrows from the trainer.

Everything is fetched from its module; nothing here is loaded by `import opd_align`.
"""
