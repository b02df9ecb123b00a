#!/usr/bin/env bash
# Real text through a broker's whole life, archived to S3 and to a directory:
# produce, archive, kill -9, delete the disk, restore, replay, compare. Needs
# bin/tidemark (make build) and the S3 server (make tools); both are built by
# `make tour`. Arguments go to the program: .ci/tour.sh -limit 5m
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p .cache
go build -o .cache/tour ./internal/testkit/tour
exec .cache/tour -binary bin/tidemark "$@"
