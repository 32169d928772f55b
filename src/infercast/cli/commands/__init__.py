"""The commands; those that answer one kind of question share a file."""
