-- What one coordinator tells of its clients, and what it asks for them, in one step.
--
-- KEYS[1] is a hash of the coordinators, each with the time (ms of this server's clock) until which its counts stand: its lease.
-- KEYS[1 + i] is the hash of client i:
--   r:ID, q:ID   requests of it that coordinator ID has on their way, and those among them that wait for a verifier
--   u:ID         "GENERATION TOKENS": what ID has said of the tokens that it used
--   level, at    what is left of its tokens, and when that was so (ms)
-- Counts are absolute, so that a message which comes twice, or whose answer is lost, does no harm.
--
-- ARGV: ID, whether its lease is renewed (1 or 0), how long one is in ms, coordinators that there are, quotas of requests, queued
-- and tokens per minute (-1: none); then of each client held, waiting, generation, used, acknowledged, the number of asks, and of each ask
-- its places and what would wait with it. Used is a sum that starts with a generation; acknowledged is what was answered of it, and counts
-- where this hash knows nothing of the generation.
--
-- Returns whether the counts are those of all coordinators (1 or 0), how many are known, and of each client what other coordinators hold,
-- what waits there, the tokens left (text), and of each ask 0 (granted), 1 (over requests), 2 (over queued) or 3 (no tokens are left).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local me, renews, lease_ms, coordinators = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4])
local most_requests, most_queued, rate = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local function hash(key)
  local flat, fields = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

if renews then
  redis.call('HSET', KEYS[1], me, now + lease_ms)
  if redis.call('PTTL', KEYS[1]) < lease_ms then redis.call('PEXPIRE', KEYS[1], lease_ms) end
end
local known, live = 0, {}
for id, ends in pairs(hash(KEYS[1])) do
  if tonumber(ends) > now then
    known, live[id] = known + 1, true
  else
    redis.call('HDEL', KEYS[1], id)
  end
end
local exact = live[me] and known >= coordinators

-- Sums what other coordinators hold, and drops what those have left behind whose leases are over.
local function elsewhere(key, fields)
  local held, waiting = 0, 0
  for field, value in pairs(fields) do
    local kind, id = string.match(field, '^([rqu]):(.*)$')
    if kind and id ~= me then
      if not live[id] then
        redis.call('HDEL', key, field)
      elseif kind == 'r' then
        held = held + tonumber(value)
      elseif kind == 'q' then
        waiting = waiting + tonumber(value)
      end
    end
  end
  return held, waiting
end

-- What is left of the tokens, after those that were used since this coordinator said so last.
local function tokens_left(fields, generation, used, acknowledged)
  local level = tonumber(fields['level'] or rate)
  local passed = math.max(0, now - tonumber(fields['at'] or now))
  level = math.min(rate, level + passed * rate / 60000)
  local told, total = string.match(fields['u:' .. me] or '', '^(%d+) (-?%d+)$')
  return level - (used - (told == generation and tonumber(total) or acknowledged))
end

local function keep(key, field, count)
  if count > 0 then redis.call('HSET', key, field, count) else redis.call('HDEL', key, field) end
end

local answer, at = {exact and 1 or 0, known}, 8
for i = 2, #KEYS do
  local key, fields = KEYS[i], hash(KEYS[i])
  local held, waiting, generation = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2]
  local used, acknowledged, asks = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local held_elsewhere, waiting_elsewhere = elsewhere(key, fields)
  local level = rate < 0 and 0 or tokens_left(fields, generation, used, acknowledged)
  local said = {held_elsewhere, waiting_elsewhere, string.format('%.17g', level)}
  at = at + 6
  for _ = 1, asks do
    local places, would_wait, refused = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), 0
    if most_requests >= 0 and held_elsewhere + held + places > most_requests then
      refused = 1
    elseif rate >= 0 and level <= 0 then
      refused = 3
    elseif most_queued >= 0 and would_wait > 0 and waiting_elsewhere + would_wait > most_queued then
      refused = 2
    elseif exact then
      held, waiting = held + places, math.max(waiting, would_wait)
    end
    said[#said + 1], at = refused, at + 2
  end
  keep(key, 'r:' .. me, held)
  keep(key, 'q:' .. me, waiting)
  local full_in = 0
  if rate >= 0 then
    full_in = math.ceil((rate - level) * 60000 / rate)
    redis.call('HSET', key, 'u:' .. me, generation .. ' ' .. string.format('%.0f', used),
      'level', string.format('%.17g', level), 'at', now)
  end
  redis.call('PEXPIRE', key, math.max(2 * lease_ms, full_in))
  answer[#answer + 1] = said
end
return answer
