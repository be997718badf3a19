#!lua flags=allow-oom
-- with: amounts, clock, state, holds, expiry
-- Ends at most ARGV[1] expired holds of the account. Returns how many it ended.
return expire(amount(ARGV[1]), now_ms())
