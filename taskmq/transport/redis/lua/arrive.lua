-- Arrive: a dead letter that departed from another queue of the cluster is queued again here, once.
--
-- ARGV   3 queue, 4 id, 5 record, 6 log
-- reply  1

-- @include revive

if not task(ARGV[4]) then
  local q = queue(ARGV[3])
  promote(q)
  local t = parse(ARGV[4], ARGV[5])
  T[t.id] = t
  set_text(t, 'm', nil)
  set_text(t, 'q', q.name)
  if ARGV[6] ~= '' then t.log, t.logged = ARGV[6], true end
  revive(q, q, t, next_seq(), now)
  look_for_missed(q)
  finish_verb(q)
  commit()
end
return 1
