"""Child processes: how they die with their parent, what they say to it, and the cores that they may use."""
