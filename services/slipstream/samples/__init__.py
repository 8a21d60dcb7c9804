"""The completions of a run, stored so that they can be looked at: the table, its writer, its reader."""
