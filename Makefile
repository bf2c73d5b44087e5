# What can be done here: make help
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The Go release that builds what is shipped (compose/Dockerfile uses the same,
# a test compares them) and whose standard library "make vuln" looks at.
GO_RELEASE := 1.26.10

# Narrow a run: make test PKG=./relay/... ARGS='-run Window -v'
PKG  ?= ./...
ARGS ?=

# Starts one PostgreSQL (with -kafka: and an Apache Kafka) for all packages of a
# test run, and ends it afterwards.
STACK := go run ./internal/cmd/teststack

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/fenceline/fenceline/internal/version.injected=$(VERSION)

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: test
test: ## Run the tests against PostgreSQL and an in-process broker
	$(STACK) -- go test -timeout 30m $(ARGS) $(PKG)

.PHONY: test-race
test-race: ## Run the tests with the race detector on
	$(STACK) -- go test -timeout 30m -race $(ARGS) $(PKG)

.PHONY: test-kafka
test-kafka: ## Run the tests against Apache Kafka (needs Java 17 and Maven)
	$(STACK) -kafka -- go test -timeout 30m $(ARGS) $(PKG)

.PHONY: test-debezium
test-debezium: ## Run the chain with Debezium in the relay's place, minutes (needs Java 17 and Maven)
	$(STACK) -kafka -- go test -tags debezium -count=1 -timeout 30m $(ARGS) ./internal/e2e/debezium

.PHONY: test-pg18
test-pg18: ## Run the suites that rest on PostgreSQL against version 18, fetched if need be
	$(STACK) -postgres-version 18 -- go test -timeout 30m $(ARGS) $(if $(filter ./...,$(PKG)),./fencing/... ./outbox/... ./migrations/... ./internal/pgtest,$(PKG))

.PHONY: long
long: ## Run the long suites at full length, against Apache Kafka
	FENCELINE_LONG=1 $(STACK) -kafka -- go test -timeout 2h $(ARGS) $(PKG)

.PHONY: bench
bench: ## Measure against the field, forty minutes; ARGS=-quick for minutes (bench/README.md)
	cd bench && go run . $(ARGS)

.PHONY: bench-page
bench-page: ## Write docs/benchmark.md and its plots from the figures of the last "make bench"
	cd bench && go run . -from results/results.json -out $(CURDIR)/docs

.PHONY: bench-smoke
bench-smoke: ## A minute of the benchmark: ratios to look at; fails only if an arm can't run or its output is wrong
	cd bench && go run . -smoke -out results/smoke

.PHONY: bench-fencing
bench-fencing: ## Print what a fenced commit costs, as ratios (docs/performance.md)
	go test ./fencing -run '^$$' -bench 'CommitAgainstAPlainTransaction|UnderAHeldSnapshot|TakeoverUnderLoad|RenewalOfAThousandLeases' -benchtime 1x -timeout 1h $(ARGS)

.PHONY: bench-relay
bench-relay: ## Print what draining a backlog costs, as a ratio to a bare Kafka client (docs/performance.md)
	$(STACK) -kafka -kafka-heap 1024 -durable -- go test ./relay/kafkapub -run '^$$' -bench 'Drain$$' -benchtime 1x -timeout 1h $(ARGS)

.PHONY: bench-consumer
bench-consumer: ## Print what the guard costs a consumer, as ratios (docs/performance.md)
	go test ./consumer -run '^$$' -bench 'GuardedAgainstPlain|BatchAgainstOneByOne|RejectingARewind|OneHotKeyUnderAHeldSnapshot|AnEventThatComesAlone' -benchtime 1x -timeout 1h $(ARGS)

.PHONY: mutants
mutants: ## Take each rule out of the code and the database, and see its scenario fail
	FENCELINE_LONG=1 $(STACK) -- go test -count=1 -v -timeout 1h -run 'EachRule|ReceiptAndFenceReadOneAfter|WithACachingSequence' $(ARGS) ./fencing/... ./relay
	FENCELINE_LONG=1 $(STACK) -- go test -count=1 -v -timeout 2h -run 'EachMutant' $(ARGS) ./consumer ./relay

.PHONY: demo
demo: ## Run the whole story, one command (ARGS=-keep leaves the servers running)
	go run ./cmd/demo $(ARGS)

.PHONY: build
build: ## Build the programs into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: fmt
fmt: ## Format all Go code
	gofmt -w .

.PHONY: tidy
tidy: ## Tidy the modules: ours, the benchmark's and those of the pinned tools
	go mod tidy
	go -C bench mod tidy
	go -C tools/lint mod tidy
	go -C tools/vuln mod tidy

.PHONY: lint
lint: bin/golangci-lint ## Check formatting, modules, go vet and the linters
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; fi
	go mod tidy -diff
	go -C bench mod tidy -diff
	go vet ./...
	go vet -tags debezium ./internal/e2e/debezium
	go -C bench vet ./...
	bin/golangci-lint run
	cd bench && $(CURDIR)/bin/golangci-lint run

.PHONY: vuln
vuln: bin/govulncheck ## Look for known vulnerabilities in what is built
	go run ./internal/cmd/vulncheck -govulncheck bin/govulncheck -toolchain go$(GO_RELEASE) ./...

.PHONY: ci
ci: ## Run what the build machine runs
	CI=true .ci/run

.PHONY: clean
clean: ## Remove bin/ (the caches of Go and of the servers stay)
	rm -rf bin

# The tools are pinned in modules of their own, so that their dependencies don't
# become ours. They are built again only when their pins move.
bin/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	go build -C tools/lint -trimpath -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

bin/govulncheck: tools/vuln/go.mod tools/vuln/go.sum
	go build -C tools/vuln -trimpath -o $(CURDIR)/$@ golang.org/x/vuln/cmd/govulncheck
	@touch $@
