#!lua flags=allow-oom
-- with: amounts, clock, state, holds, expiry
-- Ends up to ARGV[1] holds of the account that are past their time. Answers how many.
return expire(amount(ARGV[1]), now_ms())
