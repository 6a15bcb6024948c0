-- Depart: a dead letter of a cluster is to move to another queue's slot. It stays here, marked with where it goes, until it
-- has arrived there; from now on it can be replayed nowhere else.
--
-- ARGV   3 queue, 4 id, 5 queue it is to go to
-- reply  {} when it is not dead, else {where it goes, its record, its log}

-- @include commit

local t = task(ARGV[4])
if not t or t.st ~= 'F' then return {} end
local q = queue(ARGV[3])
if not t.x.m then
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
commit()
return {t.x.m, record(t), log or ''}
