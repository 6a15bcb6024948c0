-- Flows: partitions, and the unpartitioned tasks of a queue. Twin of records.py (FlowRecord, place) and policy/turns.py.
--
-- part:<len>:<q>:<code>  ZSET, a partition's line            line:<spec>:<q>   ZSET, a line of unpartitioned tasks
-- turns:<spec>:<q>       ZSET of the partitions that may run now, by the spec of their heads. Strict: score (9 - priority)
--                        * 2^49 + tag, member the code. Aging: score dispatch_at, member the first 9 letters of the head's
--                        lm and the code.
-- flows:<q>              HASH code → "live,tag,weight,max_running,aside,blocked_until,blocked_seq,paused,running;held_by;
--                        parked;score lm …" only for a partition about which there is more to say than its line and turn: one
--                        that runs, waits, is stopped or has a weight. An ordered one lists what runs, in order; parked is
--                        the first of heads:, "score lm".
-- heads:<len>:<q>:<code> ZSET of the parked tasks of an ordered partition, as they stood in its line
-- blocks:<q>             ZSET of blocked partitions by the end of it; member blocked_seq and code
--
-- Between verbs a partition exists if it is in one of the two; so a million of them cost nothing but their lines and turns.

-- @include limits

local know_flows, load_flows, load_with_flows, forget, flow, tag_of, touch, has_line, stopped, flow_room, born, place, sync, unblock, block, run_add,
  run_drop, add_parked, drop_parked
do

local FLOW = '^(%d),(%d+),(%d+),(%d*),(%d+),(%d*),([^,]*),(%d),(%d+);([^;]*);([^;]*);(.*)$'

-- Where a partition with this head stands among the turns: set and member.
local function turn_place(q, f, m)
  local set = zset(K('turns:' .. lm_spec(m), q.name))
  return set, q.aging > 0 and sub(m, 1, 9) .. f.code or f.code
end

-- A flow that does not exist. What few flows have – max, blocked, bseq, held, parked, ps – is not there until they have it:
-- a table for all of it costs twice the time.
local function new_flow(q, name)
  return {
    code = name, ordered = byte(name) == 33, line = zset(K2('part', q.name, name)),
    exists = false, live = false, tag = 0, weight = 1, aside = 0, run = NONE, nrun = 0, paused = false
  }
end

-- fl: its flows by code, read_texts: what the server has of them; made when the first is asked for
function know_flows(q)
  if not q.fl then q.fl, q.read_texts = {}, {} end
end

-- Read the texts of these partitions in one command, as far as they were not read yet.
function load_flows(q, names)
  know_flows(q)
  local unread, seen = {}, {}
  for i = 1, #names do
    local name = names[i]
    if name ~= '' and not q.fl[name] and not seen[name] then unread[#unread + 1], seen[name] = name, true end
  end
  for from = 1, #unread, 4000 do
    local upto = min(from + 3999, #unread)
    local got = redis.call('HMGET', K('flows', q.name), unpack(unread, from, upto))
    for i = from, upto do q.read_texts[unread[i]] = got[i - from + 1] end
  end
end

-- Read these tasks and their flows.
function load_with_flows(q, ids)
  load_tasks(ids)
  local codes = {}
  for i = 1, #ids do
    local t = task(ids[i])
    if t then codes[#codes + 1] = code(t) end
  end
  load_flows(q, codes)
end

function forget(f)
  f.exists, f.live, f.tag, f.weight, f.max, f.aside, f.run, f.nrun = false, false, 0, 1, nil, 0, NONE, 0
  f.blocked, f.bseq, f.paused, f.held, f.parked, f.ps = nil, nil, false, nil, nil, nil
end

-- The flow of a code; it may not exist.
function flow(q, name)
  if name == '' then return q.plain end
  know_flows(q)
  local f = q.fl[name]
  if f then return f end
  local state = q.read_texts[name]
  if state == nil then state = redis.call('HGET', K('flows', q.name), name) end
  f = new_flow(q, name)
  q.fl[name] = f
  local m = zfirst(f.line)
  if state then
    local live, tag, weight, most, aside, blocked, bseq, paused, nrun, held, parked, run = match(state, FLOW)
    f.exists, f.live, f.tag, f.weight, f.max = true, live == '1', tonumber(tag), tonumber(weight), tonumber(most)
    f.aside, f.blocked, f.bseq, f.paused = tonumber(aside), tonumber(blocked), bseq, paused == '1'
    f.nrun, f.stored = tonumber(nrun), true
    if held ~= '' then f.held = held end
    if parked ~= '' then
      local s, l = match(parked, '^(%S+) (%S+)$')
      f.ps, f.parked = tonumber(s), l
    end
    if run ~= '' then
      f.run = {}
      for s, l in gmatch(run, '(%S+) (%S+)') do f.run[#f.run + 1] = {tonumber(s), l} end
    end
  elseif m then
    f.exists, f.live, f.tag = true, true, nil -- its tag is in its turn
  end
  if f.live and m then f.tset, f.tm = turn_place(q, f, m) end
  return f
end

function tag_of(q, f)
  if f.tag == nil then
    local s = q.aging == 0 and redis.call('ZSCORE', f.tset.key, f.tm)
    f.tag = s and s - floor(s / PB) * PB or 0
  end
  return f.tag
end

local function flow_text(q, f)
  local run = {}
  for i = 1, #f.run do run[i] = I(f.run[i][1]) .. ' ' .. f.run[i][2] end
  return (f.live and '1,' or '0,') .. I(tag_of(q, f)) .. ',' .. I(f.weight) .. ',' .. (f.max and I(f.max) or '') .. ','
    .. I(f.aside) .. ',' .. (f.blocked and I(f.blocked) or '') .. ',' .. (f.bseq or '') .. ',' .. (f.paused and '1' or '0')
    .. ',' .. I(f.nrun) .. ';' .. (f.held or '') .. ';'
    .. (f.parked and I(f.ps) .. ' ' .. f.parked or '') .. ';' .. concat(run, ' ')
end

function touch(q, f)
  if not f.dirty then
    f.dirty = true
    if q.touched == NONE then q.touched = {} end
    q.touched[#q.touched + 1] = f
  end
end

function has_line(q, f)
  if not f.plain then return zfirst(f.line) ~= nil end
  local lanes = of_specs(q, 'line')
  for i = 1, #lanes do
    if zfirst(lanes[i]) then return true end
  end
  return false
end

function stopped(f) return f.blocked or f.held or f.paused end

function flow_room(f) return f.max and max(0, f.max - f.nrun) end

local function eligible(q, f)
  if stopped(f) or (f.ordered and f.nrun > 0) or flow_room(f) == 0 or not has_line(q, f) then return false end
  if not f.parked then return true end
  local m, s = zfirst(f.line)
  return stands_before(s, m, f.ps, f.parked)
end

-- The flow of a code, born if need be. The first partition makes the unpartitioned tasks a flow, too.
function born(q, name)
  local f = flow(q, name)
  if not f.exists then
    if q.flows == 0 then q.plain.live = has_line(q, q.plain) end
    f.exists, q.flows, q.dirty = true, q.flows + 1, true
    touch(q, f)
  end
  return f
end

-- Brings a flow's standing up to date after any change: joined, moved, out, or forgotten. Its turn follows at `sync`.
function place(q, f)
  if f.plain and q.flows == 0 then return end -- nobody to take turns with
  local can = eligible(q, f)
  if can and not f.live and q.flows > 0 and q.aging == 0 then
    q.j, f.tag = join(q.j, q.v, tag_of(q, f))
    q.dirty = true
  end
  if can and not f.live then
    enliven(q)
    wake(q.name, 1)
  end
  if f.live and not can and not (f.ordered and f.nrun > 0) then
    if q.stopped == NONE then q.stopped = {} end
    q.stopped[#q.stopped + 1] = f
  end
  if f.plain then
    if f.live ~= can then f.live, q.dirty = can, true end
    return
  end
  tag_of(q, f)
  f.live = can
  touch(q, f)
  if not can and f.nrun == 0 and f.aside == 0 and not stopped(f) and not has_line(q, f) then
    forget(f)
    q.flows, q.dirty = q.flows - 1, true
  end
end

-- Writes the turns and texts of changed flows, as far as this script has come.
function sync(q)
  if #q.touched == 0 then return end
  for i = 1, #q.touched do
    local f = q.touched[i]
    f.dirty = nil
    local set, m, s
    if f.live then
      local head, hs = zfirst(f.line)
      set, m = turn_place(q, f, head)
      s = q.aging > 0 and hs or lm_prio_score(head) + tag_of(q, f)
    end
    if f.tset and (f.tset ~= set or f.tm ~= m) then zrem(f.tset, f.tm) end
    if set and (f.tset ~= set or f.tm ~= m or f.ts ~= s) then zadd(set, m, s) end
    f.tset, f.tm, f.ts = set, m, s
    local more = f.exists and (not f.live or f.nrun > 0 or f.aside > 0 or f.weight ~= 1 or f.max or f.parked)
    q.texts = q.texts or {}
    if more then
      q.texts[f.code], f.stored = flow_text(q, f), true
    elseif f.stored then
      q.texts[f.code], f.stored = false, false
    end
  end
  q.touched = NONE
end

-- ── blocked until ──

function unblock(q, f)
  if f.blocked then
    zrem(zq(q, 'blocks'), f.bseq .. f.code)
    f.blocked, f.bseq = nil, nil
    touch(q, f)
  end
end

-- Stops a flow until then; the later of two ends holds.
function block(q, f, till, seqx)
  if f.blocked and f.blocked >= till then return end
  unblock(q, f)
  f.blocked, f.bseq = till, seqx
  zadd(zq(q, 'blocks'), seqx .. f.code, till)
  falls_due(q, till)
  touch(q, f)
end

-- ── parked tasks of an ordered partition: nothing behind the first of them may start ──

local function heads(q, f) return zset(K2('heads', q.name, f.code)) end

function add_parked(q, f, s, m)
  zadd(heads(q, f), m, s)
  if not f.parked or stands_before(s, m, f.ps, f.parked) then f.parked, f.ps = m, s end
end

function drop_parked(q, f, m)
  zrem(heads(q, f), m)
  if f.parked == m then f.parked, f.ps = zfirst(heads(q, f)) end
end

-- ── what runs, in an ordered partition in order ──

function run_add(f, s, m)
  f.nrun = f.nrun + 1
  if f.ordered then
    if f.run == NONE then f.run = {} end
    local run, i = f.run, #f.run + 1
    while i > 1 and stands_before(s, m, run[i - 1][1], run[i - 1][2]) do i = i - 1 end
    table.insert(run, i, {s, m})
  end
end

function run_drop(f, m)
  f.nrun = f.nrun - 1
  for i = 1, #f.run do
    if f.run[i][2] == m then
      table.remove(f.run, i)
      return
    end
  end
end

end
