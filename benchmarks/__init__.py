"""Programs that measure the figures of the documentation, each by `python -m benchmarks.NAME` in this clone.

A benchmark of more than one file is a folder. The files of this folder are small benchmarks, and modules
that benchmarks share: `circle` (whole runs), `sampler` (completions without a rollout), `cost` (time and
memory of a call), `ratio` (how ratios are printed). `figures` runs the benchmarks and writes the tables.
"""
