"""The atomic steps of the Redis store. All keys have one hash tag, so that a Cluster has them on one node.

A job is a hash: rev (random, new at each change), job (its JSON), token, entry (its place in the queue), seq, request, result.
The guards are in `machine.step`: a step reads the job, and COMMIT takes what became of it unless another was faster.
"""

from __future__ import annotations

COMMIT = """
-- KEYS: job, chunks, queue, timers, all jobs, jobs of the old state, jobs of the new state, seq
-- ARGV: id, rev that it must have ('' for none), new rev, job, token, when to wake ('' for never), group
--       what happens to its place in the queue ('enter', 'leave', 'renew', 'stay'), chunks to have ('' for any), last chunk,
--       request, result, 'clear' to drop chunks
local rev = redis.call('HGET', KEYS[1], 'rev') or ''
if rev ~= ARGV[2] then return {0, rev} end
if ARGV[9] ~= '' and redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[9]) - 1 then return {-1, ''} end
if ARGV[10] ~= '' then redis.call('RPUSH', KEYS[2], ARGV[10]) end
redis.call('HSET', KEYS[1], 'rev', ARGV[3], 'job', ARGV[4], 'token', ARGV[5])
if ARGV[11] ~= '' then redis.call('HSET', KEYS[1], 'request', ARGV[11]) end
if ARGV[12] ~= '' then redis.call('HSET', KEYS[1], 'result', ARGV[12]) end
if ARGV[13] == 'clear' then redis.call('DEL', KEYS[2]) end
local seq = redis.call('HGET', KEYS[1], 'seq')
if not seq then
  seq = redis.call('INCR', KEYS[8])
  redis.call('HSET', KEYS[1], 'seq', seq)
  redis.call('ZADD', KEYS[5], seq, ARGV[1])
end
if KEYS[6] ~= KEYS[7] then redis.call('ZREM', KEYS[6], ARGV[1]) end
redis.call('ZADD', KEYS[7], seq, ARGV[1])
if ARGV[6] == '' then redis.call('ZREM', KEYS[4], ARGV[1]) else redis.call('ZADD', KEYS[4], ARGV[6], ARGV[1]) end
if ARGV[8] == 'leave' or ARGV[8] == 'renew' then
  local entry = redis.call('HGET', KEYS[1], 'entry')
  if entry and entry ~= '' then
    redis.call('XACK', KEYS[3], ARGV[7], entry)
    redis.call('XDEL', KEYS[3], entry)
  end
  redis.call('HSET', KEYS[1], 'entry', '')
end
if ARGV[8] == 'enter' or ARGV[8] == 'renew' then
  redis.call('HSET', KEYS[1], 'entry', redis.call('XADD', KEYS[3], '*', 'id', ARGV[1]))
end
return {1, ARGV[3]}
"""

APPEND = """
-- KEYS: job, chunks   ARGV: token, index, chunk
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
local have = redis.call('LLEN', KEYS[2])
if have == tonumber(ARGV[2]) then redis.call('RPUSH', KEYS[2], ARGV[3]) return 1 end
if have == tonumber(ARGV[2]) + 1 then return 1 end
return 0
"""

BEAT = """
-- KEYS: job, queue   ARGV: token, group, consumer
local found = redis.call('HMGET', KEYS[1], 'token', 'entry')
if found[1] ~= ARGV[1] or not found[2] or found[2] == '' then return 0 end
redis.call('XCLAIM', KEYS[2], ARGV[2], ARGV[3], 0, found[2], 'JUSTID')
return 1
"""

DROP = """
-- An entry of the queue that belongs to no job (any more).   KEYS: job, queue   ARGV: entry, group
if redis.call('HGET', KEYS[1], 'entry') == ARGV[1] then return 0 end
redis.call('XACK', KEYS[2], ARGV[2], ARGV[1])
redis.call('XDEL', KEYS[2], ARGV[1])
return 1
"""

FORGET = """
-- KEYS: job, chunks, timers, all jobs, jobs of its state   ARGV: id, rev that it must have
if redis.call('HGET', KEYS[1], 'rev') ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[5], ARGV[1])
return 1
"""

MEND = """
-- A queued job whose entry is not in the queue (the key was deleted).   KEYS: job, queue   ARGV: id
local found = redis.call('HMGET', KEYS[1], 'entry', 'job')
if not found[1] or found[1] == '' then return 0 end
if #redis.call('XRANGE', KEYS[2], found[1], found[1]) > 0 then return 0 end
redis.call('HSET', KEYS[1], 'entry', redis.call('XADD', KEYS[2], '*', 'id', ARGV[1]))
return 1
"""

TIDY = """
-- Consumers that hold nothing and are long silent.   KEYS: queue   ARGV: group, idle [ms]
local gone = 0
if redis.call('EXISTS', KEYS[1]) == 0 then return gone end
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local facts = {}
  for at = 1, #row, 2 do facts[row[at]] = row[at + 1] end
  if facts['pending'] == 0 and facts['idle'] > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], facts['name'])
    gone = gone + 1
  end
end
return gone
"""
