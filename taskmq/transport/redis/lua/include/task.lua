-- A task's record: one string for its whole life.
--
-- t:<id>  line 1  state, priority, seq (8 letters), spec (2), then ",epoch,attempts,lease_until,hand,flags,started_at,worker"
--         line 2  what is seldom set, a letter and a number each: c created_at, a available_at if later, m max_attempts if
--                 not 3, e expires_at, d deadline_at, r retry_at, b blamed, x expiries, y replays, f finished_at,
--                 z delete_at, w weight and n max_running of its partition, l limit's n, t retention, k life of its key
--         line 3  "\t" and a letter before each text: h handler, v version, q queue, p partition, k key, l limit, g tags,
--                 d digest of a key that it holds no more (else it stands with the key), m queue it moves to (depart.lua)
--         line 4  progress, line 5 result or reason, error and traceback: JSON
--         the rest is the body, untouched
-- state   D due later, A aside for a retry, W in line, P parked, R running; S F C E ended
-- hand    batch (12 hex), group and position in it (5 digits each): who was claimed together (lease.py, blame)
-- flags   1 started, 2 cancel requested
-- log:<id>  the failed attempts, a line of JSON each
--
-- Numbers in letters: base 64, in digits that sort as bytes (records.py has the same); 4096 specs a queue, and at 100,000
-- tasks a second the letters of seq last 89 years.
--
-- Lines and sets know a task by priority, seq, spec and id ("lm": sorts an aging line) or by seq, priority, spec and id
-- ("ref": sorts what falls due at one time).

-- @include queue

local T -- tasks by id; false: there is none
local raw -- their records by id, as far as they were read; taken apart when somebody asks for the task
local changed -- tasks to be written
T, raw, changed = {}, {}, {}
fresh[#fresh + 1] = function()
  if next(T) then T = {} end
  if next(raw) then raw = {} end
  if changed[1] then changed = {} end
end

local two, eight, number, texts_in, parse, load_tasks, task, rest_of, change, record, set, set_text
do

local HOT = '^(.)(%d)(........)(..),(%d+),(%d+),(%d*),([^,]*),(%d),(%d*),([^\n]*)\n'
  .. '([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n()'
local COLD = {'c', 'a', 'm', 'e', 'd', 'r', 'b', 'x', 'y', 'f', 'z', 'w', 'n', 'l', 't', 'k'}
local DIGITS = '-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz'
local pairs_of = {} -- two digits by their number, as they are needed

function two(n)
  local digits = pairs_of[n]
  if not digits then
    local high = floor(n / 64)
    digits = sub(DIGITS, high + 1, high + 1) .. sub(DIGITS, n - 64 * high + 1, n - 64 * high + 1)
    pairs_of[n] = digits
  end
  return digits
end

local begins, upper_of = '------', 0 -- the first six letters are mostly those of the last number
function eight(n)
  local upper = floor(n / 4096)
  if upper ~= upper_of then
    local a, b = floor(upper / 16777216), floor(upper / 4096)
    begins = two(a) .. two(b - a * 4096) .. two(upper - b * 4096)
    upper_of = upper
  end
  return begins .. two(n - upper * 4096)
end

local numbers_of = {} -- of two digits, as they are needed
function number(digits)
  local n = numbers_of[digits]
  if n then return n end
  if #digits > 2 then
    if sub(digits, 1, 6) == begins then return upper_of * 4096 + number(sub(digits, 7)) end
    return number(sub(digits, 1, -3)) * 4096 + number(sub(digits, -2))
  end
  n = 0
  for i = 1, #digits do
    local b = byte(digits, i)
    n = n * 64 + (b > 96 and b - 59 or b == 95 and 37 or b > 64 and b - 54 or b > 47 and b - 47 or 0)
  end
  numbers_of[digits] = n
  return n
end

-- Lines 2 and 3 of many tasks are the same: taken apart once in a call, line 3 once for many calls. Their tables are
-- copied before a change.
local colds
local texts_of, remember_texts = kept(500)
colds = {}
fresh[#fresh + 1] = function()
  if next(colds) then colds = {} end
end

local function parse_cold(cold)
  local c = {}
  for k, v in gmatch(cold, '(%a)(%d+)') do c[k] = tonumber(v) end
  colds[cold] = c
  return c
end

function texts_in(texts)
  local x = texts_of(texts)
  if not x then
    x = {}
    for k, v in gmatch(texts, '\t(%a)([^\t]*)') do x[k] = v end
    remember_texts(texts, x)
  end
  return x
end

function parse(id, rec)
  local st, prio, seq, spec, epoch, attempts, lease, hand, flags, started, worker, cold, texts, progress, outcome, body =
    match(rec, HOT)
  if not st then return false end
  return {
    id = id, st = st, prio = tonumber(prio), seqx = seq, specx = spec, spec = number(spec), epoch = tonumber(epoch),
    attempts = tonumber(attempts), lease = tonumber(lease), hand = hand, started = flags == '1' or flags == '3',
    cancel = flags == '2' or flags == '3', started_at = tonumber(started), worker = worker,
    c = colds[cold] or parse_cold(cold), x = texts_in(texts), cold = cold, texts = texts,
    progress = progress, outcome = outcome, rec = rec, body = body
  }
end

function load_tasks(ids)
  local keys, missing, n = {}, {}, 0
  for i = 1, #ids do
    local id = ids[i]
    if raw[id] == nil and T[id] == nil then
      n = n + 1
      keys[n], missing[n] = H .. 't:' .. id, id
      raw[id] = false
    end
  end
  for from = 1, n, 4000 do
    local got = redis.call('MGET', unpack(keys, from, min(from + 3999, n)))
    for i = 1, #got do raw[missing[from + i - 1]] = got[i] end
  end
end

function task(id)
  local t = T[id]
  if t == nil then
    if raw[id] == nil then load_tasks({id}) end
    t = raw[id] and parse(id, raw[id])
    T[id] = t
  end
  return t
end

-- Its lines 2 and 3, c and x, without taking the rest apart; nil: there is no such task.
function rest_of(id)
  local t = T[id]
  if t then return t.c, t.x end
  if raw[id] == nil then load_tasks({id}) end
  local cold, texts = match(raw[id] or '', '^[^\n]*\n([^\n]*)\n([^\n]*)\n')
  if cold then return colds[cold] or parse_cold(cold), texts_in(texts) end
end

function change(t)
  if not t.dirty then
    t.dirty = true
    changed[#changed + 1] = t
  end
end

local function head_text(t)
  local flags = (t.started and 1 or 0) + (t.cancel and 2 or 0)
  return t.st .. t.prio .. t.seqx .. t.specx .. ',' .. I(t.epoch) .. ',' .. I(t.attempts) .. ','
    .. (t.lease and I(t.lease) or '') .. ',' .. t.hand .. ',' .. flags .. ','
    .. (t.started_at and I(t.started_at) or '') .. ',' .. t.worker .. '\n'
end

function record(t)
  local cold = t.cold
  if t.new and t.st == 'W' and not t.own then return t.rec end -- as it came
  if t.warm then
    local parts = {}
    for i = 1, #COLD do
      local v = t.c[COLD[i]]
      if v then parts[#parts + 1] = COLD[i] .. I(v) end
    end
    cold = concat(parts)
  end
  return head_text(t) .. cold .. '\n' .. t.texts .. '\n' .. t.progress .. '\n' .. t.outcome .. '\n' .. sub(t.rec, t.body)
end

function set(t, k, v)
  local c = t.c
  local old = c[k]
  if old == v then return end
  if not t.own then
    t.own, t.c = true, {}
    for letter, number in pairs(c) do t.c[letter] = number end
    c = t.c
  end
  c[k] = v
  if old == nil and not t.warm then t.cold = t.cold .. k .. I(v) else t.warm = true end
end

function set_text(t, letter, text)
  local x = {}
  for k, v in pairs(t.x) do x[k] = v end
  x[letter], t.x = text, x
  t.texts = string.gsub(t.texts, '\t' .. letter .. '[^\t]*', '') .. (text and '\t' .. letter .. text or '')
end

end

local function ref(t) return t.seqx .. t.prio .. t.specx .. t.id end
local function lm(t) return t.prio .. t.seqx .. t.specx .. t.id end
local function ref_id(r) return sub(r, 12) end
local function lm_spec(m) return number(sub(m, 10, 11)) end

local function available_at(t) return t.c.a or t.c.c end
local function code(t) return t.x.p or '' end
local function limit_of(t) return t.x.l, t.c.l end

-- Its score in its line (policy/order.py).
local function score(q, t)
  if q.aging > 0 then return available_at(t) - t.prio * q.aging end
  return (9 - t.prio) * PB + number(t.seqx)
end
local function lm_prio_score(m) return (9 - tonumber(sub(m, 1, 1))) * PB end
local function stands_before(as, am, bs, bm) return as < bs or (as == bs and before(am, bm)) end

local function parse_new(id, rec)
  local t = parse(id, rec)
  T[id] = t
  t.new = true
  change(t)
  return t
end

-- seq: one for all queues of a store.
local function next_seq()
  if not seq then
    seq = tonumber(redis.call('GET', H .. 'seq') or '0')
    seq0 = seq
  end
  seq = seq + 1
  return eight(seq)
end
