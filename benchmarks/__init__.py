"""Programs that measure the figures of the documentation, each by `python -m benchmarks.NAME` in this clone.

A benchmark of more than one file is a folder. The files beside this one are benchmarks of one file, and what
several benchmarks share: `circle` (whole runs), `sampler` (completions without a rollout), `cost` (time and
memory of a call), `ratio` (how ratios are printed). `figures` runs the benchmarks and writes the tables.
"""
