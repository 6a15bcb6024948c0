-- Depart: a dead letter of a cluster is to move to another queue's slot. It stays here, marked with where it goes, until it
-- has arrived there; from now on it can be replayed nowhere else. Then it leaves.
--
-- How often a task was replayed tells its lives apart: what departs after y replays arrives as one with y + 1. So each step
-- may be done again, by whomever, however late, and touches no other life of the task.
--
-- ARGV   3 queue, 4 id, 5 queue it is to go to, or "" to leave for good, 6 its replays when it departed
-- reply  {} when there is nothing to do, else {where it goes, its record, its log, its replays, when the record ends}

-- @include commit

local t = task(ARGV[4])
if not t or t.st ~= 'F' then return {} end
local q = queue(ARGV[3])
if ARGV[5] == '' then
  if not t.x.m or (t.c.y or 0) ~= tonumber(ARGV[6]) then return {} end
  delete(q, t)
elseif not t.x.m then
  promote(q)
  free_key(t, true)
  local f = flow(q, code(t))
  if f.exists and f.held == t.id then
    f.held = nil
    touch(q, f)
    place(q, f)
  end
  set_text(t, 'm', ARGV[5])
  change(t)
  look_for_missed(q)
  finish_verb(q)
end
local log = redis.call('GET', H .. 'log:' .. t.id)
local reply = {t.x.m, record(t), log or '', I(t.c.y or 0), I(t.c.z)}
commit()
return reply
