"""From groups to the packed rows that are trained on."""
