"""Weight broadcasts: process group, layout and transfer of buckets, encryption, deltas with the learner's log
of changes and the engine's base copy, and a measurement of bandwidth."""
