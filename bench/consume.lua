-- wrk script: consume and ack, one record a request, from the topic TOPIC.
--
-- Each connection's answers go to the thread that runs it: a record that came is
-- acked by the thread's next request. At the end it prints how many records came
-- (200) and how many answers were 204. Acks are 204 and so is a consume that found
-- nothing: more of them than records say that the topic ran empty.

local topic = os.getenv("TOPIC") or "bench0"
local threads = {}

function setup(thread) table.insert(threads, thread) end

local consume, headers
local handles, first, last = {}, 1, 0
taken, settled = 0, 0 -- globals of a thread, which done reads

function init(args)
  headers = { ["X-Tidemark-Client"] = "wrk" }
  consume = wrk.format("POST", "/v1/topics/" .. topic .. "/consume?wait=1s",
    { ["X-Tidemark-Client"] = "wrk", ["Accept"] = "application/octet-stream" })
end

function request()
  if first > last then return consume end
  local handle = handles[first]
  handles[first] = nil
  first = first + 1
  return wrk.format("POST", "/v1/topics/" .. topic .. "/ack?receipt_handle=" .. handle, headers)
end

function response(status, answer, body)
  if status == 200 then
    taken = taken + 1
    last = last + 1
    handles[last] = answer["Tidemark-Receipt-Handle"]
  elseif status == 204 then
    settled = settled + 1
  end
end

function done(summary, latency, requests)
  local t, s = 0, 0
  for _, thread in ipairs(threads) do
    t = t + thread:get("taken")
    s = s + thread:get("settled")
  end
  print(string.format("taken %d settled %d", t, s))
end
