#!lua
-- with: amounts
-- Records that a call of the day was settled in this account, where its receipt is looked for first.
-- KEYS[1] = tg:day:<day>. ARGV: account, retention in ms.
redis.call('SADD', KEYS[1], ARGV[1])
return redis.call('PEXPIRE', KEYS[1], text(amount(ARGV[2])))
