-- Arrive: a dead letter that departed from another queue of the cluster is queued again here, once in each of its lives
-- (depart.lua), also when it has ended here and its record is gone since.
--
-- ARGV   3 queue, 4 id, 5 record, 6 log, 7 its replays when it departed, 8 when its record there ends
-- reply  1, or 0: it had arrived before
-- moved:<id>  the last life that arrived here, for as long as it may still be found where it came from

-- @include revive

local life = tonumber(ARGV[7]) + 1
local here, moved = task(ARGV[4]), redis.call('GET', H .. 'moved:' .. ARGV[4])
if (moved and tonumber(moved) >= life) or (here and ((here.c.y or 0) >= life or here.st ~= 'F')) then return 0 end
local q = queue(ARGV[3])
promote(q)
if here then -- what it left behind when it departed from here in an earlier life
  local f = flow(q, code(here))
  if f.exists and f.held == here.id then
    f.held = nil
    touch(q, f)
    place(q, f)
  end
end
local t = parse(ARGV[4], ARGV[5])
T[t.id] = t
set_text(t, 'm', nil)
set_text(t, 'q', q.name)
if ARGV[6] ~= '' then t.log, t.logged = ARGV[6], true end
revive(q, q, t, next_seq(), now)
look_for_missed(q)
finish_verb(q)
write('SET', H .. 'moved:' .. t.id, I(life), 'PX', I(max(0, floor((tonumber(ARGV[8]) - now) / 1000)) + 60000))
commit()
return 1
