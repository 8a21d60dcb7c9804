-- ARGV: reason, the bytes of a filtered group, most bytes of all such groups. Keep it for the learner to store.
keep_for_learner('filtered:' .. ARGV[1], ARGV[2], tonumber(ARGV[3]))
