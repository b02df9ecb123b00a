#!/usr/bin/env bash
# Single-record produce over HTTP, as ratios against the reference programs.
#
# wrk posts 1 KiB records with a fixed number of connections, alternately to
#   http      bench/ref/httpref        reads the body, answers 200
#   wal       bench/ref/httpref -wal   the same, durable before the answer
#   tidemark  bin/tidemark serve --dev, POST /v1/topics/bench0/produce, without
#             an archive (TIDEMARK_ARGS="--archive file:///dir" adds one)
#   many      the same with 3 topics of 1,000 partitions each
#   archived  the same as tidemark with --archive $ARCHIVE
# Ratios are paired: each is between two runs of the same round, seconds apart,
# because the machine drifts more between rounds than programs differ.
#
# usage: bench/s1.sh            settings come from the environment:
#   ROUNDS=4         rounds; the order of the targets turns with each
#   SECONDS_EACH=3   seconds per measurement
#   WARM=5           seconds each target runs before its first measurement: a
#                    broker first takes the memory that it then uses
#   CONNS="64 256"   connections; 1 compares the latency of a lone producer
#   TARGETS="http wal tidemark"   what to run; the first ones are the base
#   ARCHIVE=URL      of archived (default: a directory in WORK)
#   RECORD_BYTES=1024  PARTITIONS=6  WRK_THREADS=2
#   TIDEMARK=bin/tidemark          the binary; TIDEMARK_ARGS adds flags
#   WORK=DIR         directory for logs and data, on the disk to measure
#                    (default: a fresh one under TMPDIR; removed at the end)
#   OUT=FILE         keep the raw measurements as tab-separated values
# Exits 1 when a server does not start, or any request fails or is refused.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
rounds=${ROUNDS:-4} each=${SECONDS_EACH:-3} warm=${WARM:-5} conns=${CONNS:-64 256}
targets=${TARGETS:-http wal tidemark} threads=${WRK_THREADS:-2} partitions=${PARTITIONS:-6}
tidemark=${TIDEMARK:-$root/bin/tidemark}
export RECORD_BYTES=${RECORD_BYTES:-1024}

die() { echo "s1: $*" >&2; exit 1; }
command -v wrk >/dev/null || die "wrk is missing: apt-get install wrk"
[[ ! $targets =~ tidemark|many|archived || -x $tidemark ]] || die "$tidemark is missing: run 'make build' first"

if [[ -n ${WORK:-} ]]; then
  mkdir -p "$WORK"
  work=$(mktemp -d "$WORK/s1.XXXXXX")
else
  work=$(mktemp -d "${TMPDIR:-/tmp}/tidemark-s1.XXXXXX")
fi
pids=()
cleanup() {
  # Only processes that this script started. They stop on SIGTERM; one that
  # does not within 15 s is killed.
  local pid stop=$((SECONDS + 15))
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do
    while kill -0 "$pid" 2>/dev/null && ((SECONDS < stop)); do sleep 0.05; done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# start NAME COMMAND...: runs a server in the background, waits for its ready
# line and leaves its address in $addr.
start() {
  local name=$1 log=$work/$1.out
  shift
  : >"$log" # it is read before the server may have opened it
  "$@" >>"$log" 2>"$work/$name.err" </dev/null &
  pids+=($!)
  local pid=$! deadline=$((SECONDS + 30))
  addr=
  until [[ -n $addr ]]; do
    addr=$(sed -n 's/.*"event":"ready".*"http":"\([^"]*\)".*/\1/p' "$log")
    [[ -n $addr ]] && break
    kill -0 "$pid" 2>/dev/null || die "$name ended before it was ready: $(tail -n 3 "$work/$name.err")"
    ((SECONDS < deadline)) || die "$name was not ready within 30 s: $(tail -n 3 "$work/$name.err")"
    sleep 0.05
  done
}

# post PATH JSON: one request to $addr over bash's own TCP; fails unless 2xx.
post() {
  local line host=${addr%:*} port=${addr##*:}
  exec 3<>"/dev/tcp/$host/$port"
  printf 'POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
    "$1" "$addr" "${#2}" "$2" >&3
  IFS= read -r -t 15 line <&3 || die "POST $1: no answer"
  [[ $line == HTTP/1.1\ 2* ]] || die "POST $1: $line $(tail -n 1 <&3)"
  exec 3<&- 3>&-
}

echo "building the reference programs" >&2
(cd "$root" && CGO_ENABLED=0 go build -trimpath -o "$work/httpref" ./bench/ref/httpref)

# broker NAME TOPICS PARTITIONS FLAGS...: starts a broker with the topics that
# produce.lua writes to.
declare -A topics
broker() {
  local name=$1 n=$2 each=$3 i
  shift 3
  # shellcheck disable=SC2086 # TIDEMARK_ARGS is a list of words
  start "$name" "$tidemark" serve --dev --data-dir "$work/data-$name" --archive none \
    --http-addr 127.0.0.1:0 --raft-addr 127.0.0.1:0 --metrics-addr 127.0.0.1:0 ${TIDEMARK_ARGS:-} "$@"
  for ((i = 0; i < n; i++)); do post /v1/topics "{\"name\":\"bench$i\",\"partitions\":$each}"; done
  topics[$name]=$n
}

declare -A url
for t in $targets; do
  case $t in
  http) start http "$work/httpref" ;;
  wal) start wal "$work/httpref" -wal "$work/ring" ;;
  tidemark) broker tidemark 1 "$partitions" ;;
  many) broker many 3 1000 ;;
  archived) broker archived 1 "$partitions" --archive "${ARCHIVE:-file://$work/archive}" ;;
  *) die "unknown target $t: http, wal, tidemark, many and archived are known" ;;
  esac
  url[$t]=http://$addr
done

# measure TARGET CONNECTIONS SECONDS: prints requests/s, p50 and p99 in ms.
measure() {
  local n=$threads out=$work/wrk.out
  ((n <= $2)) || n=$2
  TOPICS=${topics[$1]:-1} wrk -t"$n" -c"$2" -d"$3s" --latency -s "$root/bench/produce.lua" "${url[$1]}" >"$out" 2>&1 || die "wrk against $1: $(tail -n 2 "$out")"
  # A refused or broken request would make the number a lie.
  if grep -qE 'Non-2xx|Socket errors' "$out"; then die "$1 at $2 connections: $(grep -E 'Non-2xx|Socket errors' "$out" | xargs)"; fi
  awk '
    function ms(v) { return v ~ /us$/ ? v / 1000 : v ~ /ms$/ ? v + 0 : v * 1000 }
    $1 == "50%" { p50 = ms($2) }
    $1 == "99%" { p99 = ms($2) }
    $1 == "Requests/sec:" { rps = $2 }
    END { if (rps == "") exit 1; printf "%.0f\t%.3f\t%.3f", rps, p50, p99 }' "$out" || die "wrk against $1 printed no rate"
}

raw=$work/raw.tsv
read -ra list <<<"$targets"
for c in $conns; do
  for t in "${list[@]}"; do measure "$t" "$c" "$warm" >/dev/null; done
  for ((r = 0; r < rounds; r++)); do
    for ((i = 0; i < ${#list[@]}; i++)); do
      t=${list[(i + r) % ${#list[@]}]}
      m=$(measure "$t" "$c" "$each")
      printf '%s\t%d\t%s\t%s\n' "$c" "$r" "$t" "$m" >>"$raw"
      printf 'round %d/%d  %4d connections  %-9s %8d req/s\n' $((r + 1)) "$rounds" "$c" "$t" "${m%%$'\t'*}" >&2
    done
  done
done
[[ -z ${OUT:-} ]] || cp "$raw" "$OUT"

awk -F'\t' -v list="$targets" -v conns="$conns" -v rounds="$rounds" '
  function sorted(key, n,   i, j, x) {
    for (i = 1; i <= n; i++) s[i] = v[key, i - 1]
    for (i = 2; i <= n; i++) { x = s[i]; for (j = i - 1; j >= 1 && s[j] > x; j--) s[j + 1] = s[j]; s[j + 1] = x }
  }
  function median(key) { sorted(key, rounds); return rounds % 2 ? s[(rounds + 1) / 2] : (s[rounds / 2] + s[rounds / 2 + 1]) / 2 }
  function spread(key) { sorted(key, rounds); return sprintf("[%.2f..%.2f]", s[1], s[rounds]) }
  { v["rps" FS $3 FS $1, $2] = $4; v["p50" FS $3 FS $1, $2] = $5; v["p99" FS $3 FS $1, $2] = $6 }
  END {
    n = split(list, t, " "); m = split(conns, c, " ")
    printf "%-5s  %-9s  %9s  %7s  %8s", "conns", "target", "req/s", "p50 ms", "p99 ms"
    for (b = 1; b < n; b++) printf "  %-20s", "req/s over " t[b]
    for (b = 1; b < n; b++) printf "  %-20s", "p50 over " t[b]
    print ""
    for (i = 1; i <= m; i++) for (k = 1; k <= n; k++) {
      key = t[k] FS c[i]
      printf "%-5s  %-9s  %9.0f  %7.2f  %8.2f", c[i], t[k], median("rps" FS key), median("p50" FS key), median("p99" FS key)
      for (q = 1; q <= 2; q++) {
        what = q == 1 ? "rps" : "p50"
        for (b = 1; b < n; b++) {
          if (b >= k) { printf "  %-20s", ""; continue }
          for (r = 0; r < rounds; r++) {
            base = v[what FS t[b] FS c[i], r]
            v["ratio", r] = base > 0 ? v[what FS key, r] / base : 0
          }
          printf "  %-20s", sprintf("%.2f %s", median("ratio"), spread("ratio"))
        }
      }
      print ""
    }
  }' "$raw" | sed 's/ *$//'
