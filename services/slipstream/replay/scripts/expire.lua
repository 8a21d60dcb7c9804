-- Records the leases whose deadline has passed. Returns how many.
return expire_leases(milliseconds())
