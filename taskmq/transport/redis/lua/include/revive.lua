-- Out of the dead letters and into its line, with a new budget. Twin of memory/inspect.py, _revive.

-- @include commit

local function revive(from, q, t, seqx, available)
  zrem(zq(from, 'done'), t.id)
  zrem(zq(from, 'dead'), t.id)
  if q ~= from then set_text(t, 'q', q.name) end
  local spec = spec_number(q, t.x.h .. '\0' .. (t.x.v or '') .. '\0' .. (t.x.l and '1' or '0'))
  t.seqx, t.spec, t.specx = seqx, spec, two(spec)
  t.outcome, t.progress, t.started_at, t.attempts, t.hand = '', '', nil, 0, ''
  local gone = {'f', 'z', 'r', 'e', 'd', 'b', 'x', 'a'}
  for i = 1, #gone do set(t, gone[i], nil) end
  if available ~= t.c.c then set(t, 'a', available) end
  set(t, 'y', (t.c.y or 0) + 1)
  count(q, 'h' .. spec, 1)
  change(t)
  enter(q, t)
  take_key(q, t)
end
