"""The replay pod: prompt leases, groups, admission and the ledger. All of its state is in Redis."""
