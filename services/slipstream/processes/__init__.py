"""Child processes: their lifetime, their messages to and from the parent, and the CPU cores they may use."""
