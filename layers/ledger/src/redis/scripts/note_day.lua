#!lua
-- with: amounts
-- Adds the account to the index of accounts that settled a call on this day. The receipt of a call is searched for in
-- these accounts first. KEYS[1] = tg:day:<day>. ARGV: account, retention in ms.
redis.call('SADD', KEYS[1], ARGV[1])
return redis.call('PEXPIRE', KEYS[1], text(amount(ARGV[2])))
