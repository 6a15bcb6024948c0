-- The end of every script that changes something: all tables become commands, and nothing reads a reply.
--
-- wake:<q>  list of at most WAKES tokens for those who wait for work of the queue (BLPOP)
-- waiting   in a cluster, where those lists are in a slot of their own: somebody waits for work of this queue

-- @include ending

local commit, collect, in_pieces, to_wake, sets
do

local WAKES = 32

-- How many waiters of a queue are told of n tasks: as many as its list of tokens has room for. In a cluster the caller
-- tells them.
function to_wake(name, n)
  if n == 0 then return 0 end
  if not home then return min(n, WAKES - redis.call('LLEN', K('wake', name))) end
  if redis.call('EXISTS', K('waiting', home)) == 1 then woken = min(n, WAKES) end
  return 0
end

local function wake_waiters()
  for name, n in pairs(wakes) do
    n = to_wake(name, n)
    if n > 0 then
      local tokens = {}
      for i = 1, n do tokens[i] = '1' end
      write('RPUSH', K('wake', name), unpack(tokens))
    end
  end
end

-- A command whose first words are there already, in pieces if it is too long for a call.
function in_pieces(words, fixed)
  local n = #words
  if n == fixed then return end
  if n <= 4000 then
    W[#W + 1] = words
    return
  end
  for from = fixed + 1, n, 4000 do
    local piece, upto = {words[1], fixed == 2 and words[2] or nil}, min(from + 3999, n)
    for i = from, upto do piece[#piece + 1] = words[i] end
    W[#W + 1] = piece
  end
end

local function commit_queue(q)
  sync(q)
  if q.born then
    if home then begun = 1 else write('ZADD', P .. 'queues', I(q.born), q.name) end
  end
  if q.dirty then sets[#sets + 1], sets[#sets + 2] = K('state', q.name), state_text(q) end
  if q.served_on then sets[#sets + 1], sets[#sets + 2] = K('served', q.name), service_text(q) end
  for field, by in pairs(q.cnt) do
    if by ~= 0 then write('HINCRBY', K('counts', q.name), field, I(by)) end
  end
  if q.texts then
    local texts, gone = {'HSET', K('flows', q.name)}, {'HDEL', K('flows', q.name)}
    for name, text in pairs(q.texts) do
      if text then
        texts[#texts + 1], texts[#texts + 2] = name, text
      else
        gone[#gone + 1] = name
      end
    end
    in_pieces(gone, 2)
    in_pieces(texts, 2)
  end
end

local function commit_limits()
  for key, k in pairs(L) do
    if k.dirty then
      local lines = {I(k.running)}
      for _, line in pairs(k.lines) do
        lines[#lines + 1] = concat({line.q, I(line.spec), I(line.n), I(line.parked), I(line.owed), I(line.v), I(line.j)}, '\t')
      end
      if k.running == 0 and #lines == 1 then
        if k.stored then
          write('DEL', H .. 'limit:' .. key)
          write('ZREM', H .. 'limits', key)
        end
      else
        write('SET', H .. 'limit:' .. key, concat(lines, '\n') .. '\n')
        if not k.stored then write('ZADD', H .. 'limits', '0', key) end
      end
    end
  end
end

-- sets: key, value, … of all strings, in one command; those of records that were made without a table come first
fresh[#fresh + 1] = function() sets = {'MSET'} end

local function commit_tasks()
  local gone = {'DEL'}
  for i = 1, #changed do
    local t = changed[i]
    if t.deleted then
      gone[#gone + 1], gone[#gone + 2] = H .. 't:' .. t.id, H .. 'log:' .. t.id
    else
      sets[#sets + 1], sets[#sets + 2] = H .. 't:' .. t.id, record(t)
      if t.logged then write('SET', H .. 'log:' .. t.id, t.log) end
    end
  end
  if seq and seq > seq0 then sets[#sets + 1], sets[#sets + 2] = H .. 'seq', I(seq) end
  in_pieces(sets, 1)
  in_pieces(gone, 1)
end

-- All that has changed so far, as commands to be sent.
function collect()
  wake_waiters()
  for i = 1, #QN do commit_queue(QN[i]) end
  commit_limits()
  commit_tasks()
  for key, z in pairs(Z) do
    if z.dirty then
      local gone, come = {'ZREM', key}, {'ZADD', key}
      for m in pairs(z.del) do gone[#gone + 1] = m end
      local last, text
      for m, s in pairs(z.add) do
        if s ~= last then last, text = s, I(s) end
        come[#come + 1], come[#come + 2] = text, m
      end
      in_pieces(gone, 2)
      in_pieces(come, 2)
    end
  end
end

function commit()
  collect()
  send()
end

end
