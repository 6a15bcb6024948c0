-- Operators' hands on one partition: pause, resume, release, skip.
--
-- ARGV   3 verb, 4 queue, 5 code
-- reply  1, or 0: nothing was there to do

-- @include revive

local q = queue(ARGV[4])
local done = 1
promote(q)
local f = flow(q, ARGV[5])

if ARGV[3] == 'pause' or ARGV[3] == 'resume' then
  f = born(q, ARGV[5])
  f.paused = ARGV[3] == 'pause'
  touch(q, f)
  place(q, f)
elseif ARGV[3] == 'release' then
  if f.exists and f.held then
    local t = task(f.held)
    f.held = nil
    touch(q, f)
    if t then revive(q, q, t, t.seqx, available_at(t)) else place(q, f) end
  else
    done = 0
  end
elseif not f.exists or f.nrun > 0 or not (f.held or f.parked or has_line(q, f)) then
  done = 0
else
  if not f.held then
    local m, s = zfirst(f.line)
    if f.parked and (not m or stands_before(f.ps, f.parked, s, m)) then m = f.parked end
    local t = task(ref_id(m))
    drop(q, t, f)
    unblock(q, f)
    finish(q, t, 'F', '"reason":"skipped","error":"an operator skipped it"')
  end
  f.held = nil
  touch(q, f)
  place(q, f)
end
finish_verb(q)
commit()
return done
