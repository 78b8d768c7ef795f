"""Teachers: the contexts they read, the demonstrations in them, and which questions they can be used on."""
