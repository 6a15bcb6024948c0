-- What one reserve takes. Twin of policy/claim.py (the essay is there) and memory/gate.py.
--
-- A candidate is one queue in one claim; a view is one flow in it: m, s the members and scores of its line read so far,
-- pos how many were taken or parked, read the rest. The heap is a sorted list from `first` on: a flow that takes a turn goes
-- back near its end, so little moves.

-- @include commit

local candidate, next_queue, choose, deliver, write_back, PARK, parked_now, enough, picks
do

local CATCH_UP = 10
PARK = 100 -- most tasks that one claim parks

-- picks: candidate, view, member and score of each, later the tasks   enough: so many were parked that the claim ends
picks = {}
fresh[#fresh + 1] = function()
  parked_now, enough = 0, false
  if picks[1] then picks = {} end
end

local function view_head(v)
  local m = v.m[v.pos + 1]
  if m == nil and v.read then
    local s
    m, s = v.read()
    if m then
      v.m[v.pos + 1], v.s[v.pos + 1] = m, s
    else
      v.read = nil
    end
  end
  return m
end

local function heap_key(c, v)
  local m, s = v.m[v.pos + 1], v.s[v.pos + 1]
  if c.aging then return s, m end
  return lm_prio_score(m) + v.tag, v.code
end

local function hides(c, m) return c.runs and not c.runs[lm_spec(m)] end

local function full(c, m)
  if not keyed(c.q, lm_spec(m)) then return false end
  local numbers, texts = rest_of(ref_id(m))
  return texts ~= nil and free(texts.l, numbers.l) <= 0
end

local function start(c, m)
  if not keyed(c.q, lm_spec(m)) then return end
  local _, texts = rest_of(ref_id(m))
  if texts then start_limit(texts.l) end -- else somebody has deleted its record
end

-- The flow competes with its next task, if it has one that this claim may take.
local function compete(c, v)
  local m = view_head(v)
  if m == nil or v.room == 0 or (c.gated and hides(c, m)) then return end
  v.hs, v.hm = heap_key(c, v)
  local heap, i = c.heap, #c.heap + 1
  while i > c.first and stands_before(v.hs, v.hm, heap[i - 1].hs, heap[i - 1].hm) do
    heap[i] = heap[i - 1]
    i = i - 1
  end
  heap[i] = v
end

local function pop(c)
  local v = c.heap[c.first]
  c.first = c.first + 1
  return v
end

-- What of a partition may start, in order: nothing behind a parked task of an ordered one.
local function line_reader(f, page)
  local entries = walk({f.line}, 1, page)
  if not f.parked then return entries end
  return function()
    local m, s = entries()
    if m and stands_before(s, m, f.ps, f.parked) then return m, s end
  end
end

-- Reads up to k more flows in turn order; false at the end.
local function read_flows(c, k)
  local names, scores = {}, {}
  while #names < k do
    local m, s = c.turns()
    if not m then break end
    names[#names + 1], scores[#scores + 1] = c.aging and sub(m, 10) or m, s
  end
  if #names == 0 then return false end
  load_flows(c.q, names)
  for i = 1, #names do
    local f = flow(c.q, names[i])
    if not c.aging then
      f.tag = f.tag or scores[i] - floor(scores[i] / PB) * PB
      f.ts = f.ts or scores[i]
    end
    local v = {
      f = f, code = f.code, tag = f.tag, weight = f.weight, ordered = f.ordered, room = flow_room(f), m = {}, s = {},
      pos = 0, taken = 0, read = line_reader(f, c.page)
    }
    c.views[#c.views + 1] = v
    if view_head(v) then
      c.last_s, c.last_m = heap_key(c, v)
      compete(c, v)
    end
  end
  return true
end

-- The first in line, reading on as far as that depends on it.
local function first_view(c)
  while c.turns do
    local v = c.heap[c.first]
    if v and c.last_s and not stands_before(c.last_s, c.last_m, v.hs, v.hm) then break end
    if not read_flows(c, max(c.page, #c.views)) then c.turns = nil end
  end
  return c.heap[c.first]
end

-- Where one is parked, those behind it are likely looked at next.
local function read_ahead(c, v)
  if v.m[v.pos + 1] then return end
  local ids = {}
  while v.read and #ids < HALF do
    local m, s = v.read()
    if not m then v.read = nil; break end
    v.m[#v.m + 1], v.s[#v.s + 1], ids[#ids + 1] = m, s, ref_id(m)
  end
  load_tasks(ids)
end

-- The flow whose turn it is; parks what its limit does not let start.
local function best(c)
  if c.again then
    local v = c.again
    c.again = nil
    compete(c, v)
  end
  local v = first_view(c)
  while v and c.gated and full(c, v.m[v.pos + 1]) do
    parked_now = parked_now + 1
    if parked_now > PARK then
      enough = true
      return nil
    end
    pop(c)
    v.pos = v.pos + 1
    c.parked[#c.parked + 1] = {v, v.pos}
    if not v.ordered then
      read_ahead(c, v)
      compete(c, v)
    end
    v = first_view(c)
  end
  return v
end

local function band(c)
  if c.aging then return 0 end
  return tonumber(sub(c.heap[c.first].m[c.heap[c.first].pos + 1], 1, 1))
end

local function pick(c, v)
  local m, s = v.m[v.pos + 1], v.s[v.pos + 1]
  v.pos, v.taken, c.taken = v.pos + 1, v.taken + 1, c.taken + 1
  if v.room then v.room = v.room - 1 end
  if c.room then c.room = c.room - 1 end
  if c.gated then start(c, m) end
  picks[#picks + 1] = {c, v, m, s}
end

-- Whose turn it is between queues, with its service counted: of those with the most urgent head who had least for its weight.
function next_queue(candidates)
  local top_band, top = -1, -1
  for i = 1, #candidates do
    local c = candidates[i]
    if c.band > top_band then
      top_band, top = c.band, c.served / c.weight
    elseif c.band == top_band then
      top = max(top, c.served / c.weight)
    end
  end
  local least = top - CATCH_UP
  local winner, e
  for i = 1, #candidates do
    local c = candidates[i]
    if c.band == top_band then
      local own = max(c.served / c.weight, least)
      if not winner or own < e or (own == e and before(c.name, winner.name)) then winner, e = c, own end
    end
  end
  if winner.served / winner.weight >= least then
    winner.served = winner.served + 1
  else
    winner.served = least * winner.weight + 1
  end
  return winner
end

local function still(candidates)
  local left = {}
  for i = 1, #candidates do
    local c = candidates[i]
    if c.room ~= 0 and best(c) then
      c.band = band(c)
      left[#left + 1] = c
    end
    if enough then break end
  end
  return left
end

local function take_heads(candidates, n, gated, look)
  local claimed = {}
  candidates = still(candidates)
  if n == 0 then return claimed end
  while #candidates > 0 and not enough do
    local c = candidates[1]
    if #candidates == 1 then c.served = c.served + 1 else c = next_queue(candidates) end
    local v = pop(c)
    pick(c, v)
    if c.flows then
      c.v, v.tag = take_turn(c.v, v.tag, v.weight)
    end
    if v.ordered then claimed[#claimed + 1] = {c, v} else c.again = v end
    if #picks == n then
      if look then still(candidates) end
      break
    end
    if gated then
      candidates = still(candidates)
    elseif c.room ~= 0 and best(c) then
      c.band = band(c)
    else
      for i = 1, #candidates do
        if candidates[i] == c then
          table.remove(candidates, i)
          break
        end
      end
    end
  end
  return claimed
end

-- Fill the places that are left with runs: one more task of each claimed ordered partition, round after round.
local function take_followers(claimed, n)
  while #claimed > 0 and #picks < n do
    local left = {}
    for i = 1, #claimed do
      if #picks == n then return end
      local c, v = claimed[i][1], claimed[i][2]
      local m = c.room ~= 0 and view_head(v) or nil
      if m and not (c.gated and (hides(c, m) or full(c, m))) then
        pick(c, v)
        c.served = c.served + 1
        left[#left + 1] = claimed[i]
      end
    end
    claimed = left
  end
end

-- A queue as a candidate. runs: the specs that the claim can run, nil for all; page: how much to read at a time.
function candidate(q, runs, page)
  local aging = q.aging > 0
  local c = {
    q = q, name = q.name, weight = q.weight, runs = runs, page = page, aging = aging, flows = q.flows > 0 and not aging, gated = q.limited or runs,
    room = room(q), heap = {}, first = 1, views = {}, parked = {}, taken = 0, served = q.served, v = q.v
  }
  if q.flows > 0 then c.turns = walk(of_specs(q, 'turns', runs), 2, page) end
  local lanes = of_specs(q, 'line', runs)
  if #lanes > 0 then
    local v = {
      f = q.plain, code = '', tag = q.plain.tag, weight = 1, ordered = false, m = {}, s = {}, pos = 0, taken = 0,
      read = walk(lanes, page, c.gated and max(page, HALF) or page)
    }
    c.plain = v
    compete(c, v)
  end
  return c
end

-- Take n tasks of a queue that stands alone and knows no partition: its line is the answer.
local function take_line(c, n)
  local v = c.plain
  if not v then return end
  if c.room and c.room < n then n = c.room end
  while v.pos < n and view_head(v) do
    local at = v.pos + 1
    v.pos = at
    picks[at] = {c, v, v.m[at], v.s[at]}
  end
  v.taken, c.taken, c.served = v.pos, v.pos, c.served + v.pos
end

-- plan: what was chosen among the queues of a cluster: how many heads and followers, and whether the next head has to be
-- looked at, so that it is parked if it must be. Returns how many heads were taken.
function choose(candidates, n, plan)
  local gated = false
  for i = 1, #candidates do gated = gated or candidates[i].gated end
  if plan then n = plan.heads end
  if #candidates == 1 and not gated and not candidates[1].turns then
    take_line(candidates[1], n)
    return #picks
  end
  local claimed = take_heads(candidates, n, gated, plan and plan.look)
  local heads = #picks
  if not enough then take_followers(claimed, plan and heads + plan.followers or n) end
  return heads
end

-- ── what the claim leaves ──

local groups -- runs in this claim

local function give(c, v, t, m, s, position, worker, batch, default_lease)
  local q, f, group = c.q, v.f, 0
  leave(q, t, f)
  if v.ordered and v.taken > 1 then -- a run: blame looks at it for itself
    if not v.group then
      groups = groups + 1
      v.group = groups
    end
    group = v.group
  end
  if not f.plain then
    run_add(f, s, m)
    touch(q, f)
  end
  q.started = q.started + 1
  t.st, t.epoch, t.worker, t.started, t.progress, t.started_at = 'R', t.epoch + 1, worker, false, '', nil
  t.hand = batch .. format('%05.0f%05.0f', group, position)
  lease_until(q, t, now + (q.lease or default_lease))
end

-- Marks the picks as running; afterwards `picks` are the tasks.
function deliver(worker, batch, default_lease)
  local chosen, ids = picks, {}
  for i = 1, #chosen do ids[i] = ref_id(chosen[i][3]) end
  load_tasks(ids)
  picks, groups = {}, 0
  for i = 1, #chosen do
    local c, v, m, s = chosen[i][1], chosen[i][2], chosen[i][3], chosen[i][4]
    local t = task(ids[i])
    if t then
      give(c, v, t, m, s, i, worker, batch, default_lease)
      picks[#picks + 1] = t
    else -- somebody has deleted its record
      zrem(v.f.plain and lane(c.q, lm_spec(m)) or v.f.line, m)
    end
  end
end

-- A task that stood in line is parked. Nothing else about it changes, so its record need not be taken apart.
local function park_standing(q, f, m, s)
  local id = ref_id(m)
  local numbers, texts = rest_of(id)
  if T[id] or numbers.r then
    local t = task(id)
    leave(q, t, f)
    park(q, t, f)
    return
  end
  zrem(f.plain and lane(q, lm_spec(m)) or f.line, m)
  wait_for_slot(q, f, m, s, texts.l, numbers.l)
  raw[id] = 'P' .. sub(raw[id], 2)
  sets[#sets + 1], sets[#sets + 2] = H .. 't:' .. id, raw[id]
end

-- Store what the claim left: service, virtual time, and the standing of the flows that gave or parked tasks.
function write_back(c)
  local q = c.q
  if c.served ~= q.served then q.served, q.served_on = c.served, true end
  if c.v ~= q.v then q.v, q.dirty = c.v, true end
  count_starts(q, c.taken)
  for i = 1, #c.parked do
    local v, at = c.parked[i][1], c.parked[i][2]
    park_standing(q, v.f, v.m[at], v.s[at])
  end
  for i = 0, #c.views do
    local v = c.views[i]
    if i == 0 then v = c.plain end
    if v and v.pos > 0 then
      local f = v.f
      if f.tag ~= v.tag then f.tag, q.dirty = v.tag, true end
      place(q, f)
    end
  end
end

end

-- What was chosen among the queues of a cluster (cluster.py).
local plans = {}
function plans.of(text)
  local heads, followers, look, seen, served = match(text, '^(%d+),(%d+),(%d),([^,]*),([^,]*)$')
  return heads and {
    heads = tonumber(heads), followers = tonumber(followers), look = look == '1', seen = tonumber(seen),
    served = tonumber(served)
  }
end

-- A queue's service after so many were taken of it by a plan, whose makers did not see what others claimed meanwhile.
function plans.served(plan, served, taken)
  local asked = plan.heads + plan.followers
  if served == plan.seen and taken == asked then return plan.served end
  return max(served, plan.served - asked) + taken
end
