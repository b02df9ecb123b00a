# Every command that people and scripts call. `make` alone lists them.
#
# Needs Go, git, and make (race detector: a C compiler). What else a target
# needs is built once, pinned, into TIDEMARK_TOOLS, which all clones share.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export TIDEMARK_TOOLS ?= $(HOME)/.cache/tidemark-tools
# One kind of build for everything: the binary is static, tests run what ships, and
# binary, tests and linter share what was compiled.
export CGO_ENABLED ?= 0
export GOFLAGS ?= -trimpath

VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT      ?= $(shell git rev-parse HEAD 2>/dev/null)
# Test binaries at a time: one more than cores, because most of them also wait.
TESTPAR     ?= 3
TESTTIMEOUT ?= 25m
TESTFLAGS   ?=
PKGS        ?= ./...
# The packages that take longest, started first: one that comes last runs alone.
LONG_PKGS   ?= ./node ./internal/testkit/e2e ./node/garbage ./tier/cold ./tier/manifest ./cmd/tidemark ./wal ./node/partition ./tier/objstore/s3
# Where tests put their files: in memory where there are 4 GiB of it for files, because most
# tests are about what a disk was asked for, and a sync there costs nothing. Tests
# that are about the disk itself go to TESTDISK.
TESTTMP     ?= $(shell .ci/testtmp)
export TESTDISK ?= $(or $(TMPDIR),/tmp)
# The packages with goroutines of their own, the longest first.
RACE_PKGS   ?= ./node ./tier/cold ./node/partition ./tier/objstore/s3 ./raftmeta ./wal/... ./segment/... ./tier/... ./node/... ./api/... ./bench/load/... ./bench/rawhttp/... ./bench/child/... ./bench/scenario ./bench/ref/...
# What they do is random in time, not in space: few histories meet every race.
RACE_HISTORIES ?= 400
# Large, with one goroutine, or about memory, which the detector multiplies: nothing to race, and many times slower.
RACE_SKIP      ?= ^(TestMillionSegments|TestPublishOnAMillion.*|TestTenThousandSegments|TestHalfDeletedIsFound|TestCostOfADay|TestLoadedChainsAreBounded|TestReplayKeepsItsMemory)$$
FUZZTIME    ?= 30s
ROUNDS      ?= 30
MINUTES     ?= 10
HISTORIES   ?= 1000000
LIMIT       ?= 60m
SEED        ?= $(shell date +%s)
ONLY        ?=
BENCH       ?= .
BENCHTIME   ?= 1s
ARGS        ?=

VERSITYGW_VERSION := v1.8.0
GOLANGCI_VERSION  := $(shell awk '$$1 == "github.com/golangci/golangci-lint/v2" {print $$2}' .ci/lint.mod)
NATS_VERSION      := v2.15.2
NATS      := $(TIDEMARK_TOOLS)/nats-server-$(NATS_VERSION)/nats-server
VERSITYGW := $(TIDEMARK_TOOLS)/versitygw-$(VERSITYGW_VERSION)/versitygw
GOLANGCI  := $(TIDEMARK_TOOLS)/golangci-lint-$(GOLANGCI_VERSION)/golangci-lint
# Tests look in TIDEMARK_TOOLS; started by the go command alone, without that
# variable, they look here.
LOCAL_TOOLS := .cache/tools/bin

# Tests that run beside others of their package mostly wait: for graces, retries,
# deadlines. So more of them at once than there are cores.
GOTEST = TMPDIR=$(TESTTMP) GOTMPDIR=$(TESTDISK) go test -p $(TESTPAR) -parallel 8 -timeout $(TESTTIMEOUT) $(TESTFLAGS)

##@ Build and run

.PHONY: build
build: ## bin/tidemark, one static binary
	go build -trimpath -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o bin/tidemark ./cmd/tidemark

.PHONY: run
run: build ## one node on 127.0.0.1:7942, archive in ./tidemark-archive (ARGS="--http-addr ...")
	exec bin/tidemark serve --dev $(ARGS)

##@ Test

.PHONY: test
test: tools build ## all tests: unit, model, crash, conformance, end to end
	$(GOTEST) $(if $(filter ./...,$(PKGS)),$(LONG_PKGS)) $(PKGS)

# Without vet, which is of the tests and the linter.
.PHONY: race
race: tools ## the concurrent packages under the race detector (RACE_PKGS=...)
	CGO_ENABLED=1 TIDEMARK_HISTORIES=$(RACE_HISTORIES) $(GOTEST) -vet=off -race -short -skip '$(RACE_SKIP)' $(RACE_PKGS)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME=30s each
	.ci/fuzz $(FUZZTIME) $(PKGS)

.PHONY: crash
crash: tools build ## kill -9 under load, restart, compare, ROUNDS=30 times
	TIDEMARK_KILL_ROUNDS=$(ROUNDS) go test -count=1 -v -timeout 60m -run '^TestKill' $$(.ci/packages '^func TestKill')

.PHONY: outage
outage: tools build ## the archive is away for MINUTES=10 under load, table; and on a small disk
	TIDEMARK_OUTAGE=$(MINUTES)m go test -count=1 -v -timeout 90m -run '^TestOutage' $$(.ci/packages '^func TestOutage')

.PHONY: scale
scale: tools build ## 1,000 idle topics, the start of 3,000 partitions with 10,000 segments, a replay of 5 GiB
	TIDEMARK_SCALE=full go test -count=1 -v -timeout 30m -run '^(TestIdleTopicsAreSmall|TestStartOfManySegments)$$' ./internal/testkit/e2e
	TIDEMARK_REPLAY_GIB=5 go test -count=1 -v -timeout 30m -run '^TestReplayKeepsItsMemory$$' ./node

.PHONY: chaos
chaos: ## HISTORIES=1000000 crash histories of every model within LIMIT=60m, from a new SEED
	.ci/chaos $(HISTORIES) $(LIMIT) $(SEED)

.PHONY: mutants
mutants: ## break each rule of the code once and see a test fail (ONLY=regexp)
	go run ./internal/testkit/crash/mutants -only '$(ONLY)'

.PHONY: tour
tour: tools build ## 60 MB of real text: produce, archive, kill -9, lose the disk, restore, compare; S3 and file://
	.ci/tour.sh

.PHONY: lint
lint: $(GOLANGCI) ## golangci-lint with .golangci.yml; dependencies are documented
	.ci/check-deps
	$(GOLANGCI) run $(PKGS)

.PHONY: cover
cover: tools build ## statement coverage per package, table; profile in .cache/cover.out
	@mkdir -p .cache
	$(GOTEST) -coverpkg=./... -coverprofile=.cache/cover.out $(PKGS) >.cache/cover.log || { grep -vE '^ok|no test files' .cache/cover.log; exit 1; }
	@.ci/cover .cache/cover.out

##@ Measure

.PHONY: bench
bench: tools ## Go benchmarks with allocations (BENCH=regexp BENCHTIME=1s)
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(TESTFLAGS) $$(.ci/packages '^func Benchmark')

.PHONY: bench-s1
bench-s1: build ## single-record produce against the reference programs (needs wrk)
	bench/s1.sh

.PHONY: targets
targets: tools build ## every speed target of one node: measured, met or not, about 30 minutes (ONLY=S1,T2 ARGS=-json; needs wrk)
	go run ./bench/targets -only '$(ONLY)' $(ARGS)

.PHONY: bench-peers
bench-peers: build nats-server ## Tidemark beside NATS JetStream and Redis, in turns, about 10 minutes (needs redis-server; ARGS="-only produce,e2e -json")
	cd bench/peers && go build -o ../../bin/peers .
	bin/peers -nats $(NATS) $(ARGS)

.PHONY: test-peers
test-peers: nats-server ## bench/peers, a module of its own: vet, and a short run of each peer that is there
	cd bench/peers && go build -o /dev/null . && go vet ./... && go test -timeout 10m $(TESTFLAGS) ./...

##@ Tools

.PHONY: tools
tools: $(VERSITYGW) ## the S3 server that tests run against, built once
	@mkdir -p $(LOCAL_TOOLS)
	@ln -sfn $(VERSITYGW) $(TIDEMARK_TOOLS)/versitygw
	@ln -sfn $(VERSITYGW) $(LOCAL_TOOLS)/versitygw

# Built into a directory beside the target and moved, so that an interrupted
# build leaves nothing that looks finished. From outside the module: its
# dependencies are none of ours.
$(VERSITYGW):
	mkdir -p $(TIDEMARK_TOOLS)
	dir=$$(mktemp -d $(TIDEMARK_TOOLS)/build.XXXXXX) && trap 'rm -rf "$$dir"' EXIT && cd "$$dir" && \
	GOBIN="$$dir" go install -trimpath -ldflags '-s -w' github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION) && \
	mkdir -p $(dir $@) && mv versitygw $@

.PHONY: nats-server
nats-server: $(NATS) ## the NATS server that bench-peers measures, built once
	@ln -sfn $(NATS) $(TIDEMARK_TOOLS)/nats-server

$(NATS):
	mkdir -p $(TIDEMARK_TOOLS)
	dir=$$(mktemp -d $(TIDEMARK_TOOLS)/build.XXXXXX) && trap 'rm -rf "$$dir"' EXIT && cd "$$dir" && \
	GOBIN="$$dir" go install -trimpath -ldflags '-s -w' github.com/nats-io/nats-server/v2@$(NATS_VERSION) && \
	mkdir -p $(dir $@) && mv nats-server $@

# The linter's module file pins its dependencies by hash and keeps them out of go.mod.
$(GOLANGCI):
	mkdir -p $(dir $@)
	go build -modfile=.ci/lint.mod -trimpath -ldflags '-s -w' -o $@.new github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	mv $@.new $@

.PHONY: lint-tool
lint-tool: $(GOLANGCI) # what `make lint` builds first, by itself

.PHONY: clean
clean: ## remove bin and .cache; shared tools stay
	rm -rf bin .cache

.PHONY: help
help: ## this list
	@awk -F':.*## ' '/^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' Makefile
