-- wrk script: POST one record of RECORD_BYTES (1024) bytes to the topics bench0,
-- bench1, and so on, TOPICS (1) of them in turns.
--
-- Bodies are lines of text with a zstd ratio of about 4, from a generator and
-- never one repeated byte: a broker that compresses must find what it finds in
-- real data. Each thread rotates over 1,024 different bodies, which is more
-- than any block that a broker compresses at once holds. They are made before
-- the clock starts, so that a request costs one table look-up.

local size = tonumber(os.getenv("RECORD_BYTES") or "1024")
local topics = tonumber(os.getenv("TOPICS") or "1")
local pool = 1024

local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("seed", threads)
end

local levels = { "debug", "info", "info", "info", "warn", "error" }
local words = {
  "accepted", "account", "address", "archive", "balance", "batch", "cache", "cancelled", "card",
  "checkout", "confirmed", "connection", "created", "customer", "declined", "delivered", "device",
  "discount", "duplicate", "expired", "failed", "fetched", "gateway", "handled", "inventory", "invoice",
  "item", "latency", "loaded", "missing", "order", "parcel", "payment", "pending", "price", "quantity",
  "queue", "received", "refund", "region", "rejected", "replica", "request", "retry", "returned",
  "scheduled", "sent", "session", "shipped", "stock", "stored", "timeout", "token", "updated", "warehouse",
}

local function line()
  local text = {}
  for i = 1, math.random(4, 9) do text[i] = words[math.random(#words)] end
  return string.format('{"ts":%d,"level":"%s","trace":"%04x%04x","user":%d,"ms":%d,"msg":"%s"}\n',
    1700000000000 + math.random(0, 1e9), levels[math.random(#levels)], math.random(0, 65535),
    math.random(0, 65535), math.random(1, 50000), math.random(0, 900), table.concat(text, " "))
end

local function body()
  local parts, n = {}, 0
  while n < size do
    local l = line()
    parts[#parts + 1] = l
    n = n + #l
  end
  return table.concat(parts):sub(1, size)
end

local requests, at = {}, 0
function init(args)
  math.randomseed(seed)
  local headers = { ["Content-Type"] = "application/octet-stream" }
  for i = 1, pool do requests[i] = wrk.format("POST", "/v1/topics/bench" .. i % topics .. "/produce", headers, body()) end
end

function request()
  at = at % pool + 1
  return requests[at]
end
