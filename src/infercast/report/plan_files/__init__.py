"""Files that a user of a plan runs next."""
