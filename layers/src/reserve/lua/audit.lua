#!lua flags=no-writes
-- Everything that an audit of one account needs, at one moment. KEYS[2] = holds by due time,
-- KEYS[3] = entries. Answers: the account's fields and values in turn, numbers due, amounts entered.
return {redis.call('HGETALL', KEYS[1]), redis.call('ZRANGE', KEYS[2], 0, -1), redis.call('HVALS', KEYS[3])}
