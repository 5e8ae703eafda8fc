# make run is what a newcomer types first, make test what CI runs. Tools come
# through go.mod's tool lines; beside Go, tests need a redis-server, which make redis installs,
# nginx and Node with Express, which make upstreams does, Caddy and HAProxy, which make gateways does, and
# Prometheus, which make prometheus does.
GO ?= go
FUZZTIME ?= 5m
# Tests of many packages wait for Redis or for a clock, so one package more than there are cores runs at a time.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: run build install test check vulns race plain redis upstreams gateways prometheus test-traefik fuzz fuzz-paths bench bench-redis bench-grpc bench-rules bench-memory faults overload losses mutants help simulate

## run: build, and start a node with the in-process store and the starter rules; WEIR_HTTP, WEIR_GRPC and WEIR_ADMIN are its ports
run: build
	./bin/weir serve

## build: bin/weir
build:
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/weir ./cmd/weir

## install: bin/weir into PREFIX/bin (/usr/local)
PREFIX ?= /usr/local
install: build
	@mkdir -p $(DESTDIR)$(PREFIX)/bin && install -m 755 bin/weir $(DESTDIR)$(PREFIX)/bin/weir || \
		{ echo "$(DESTDIR)$(PREFIX)/bin can't be written: try make install PREFIX=$$HOME/.local, or sudo make install" >&2; exit 1; }
	@echo "installed $(DESTDIR)$(PREFIX)/bin/weir"

## test: all that CI runs
test: redis check race plain

## check: formatting, vet and staticcheck, of all modules, and vulns; no tests
check: vulns
	@files=$$(gofmt -l .); test -z "$$files" || { echo "not gofmt'ed: $$files"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	for m in bench examples; do (cd $$m && $(GO) vet ./... && $(GO) tool -modfile=../go.mod staticcheck ./...) || exit 1; done

## vulns: known vulnerabilities of what is called, if their database can be reached
vulns:
	@out=$$($(GO) tool govulncheck ./... 2>&1); status=$$?; \
	case "$$out" in *"fetching vulnerabilities:"*) echo "govulncheck skipped: the database of vulnerabilities can't be reached"; exit 0;; esac; \
	echo "$$out"; exit $$status

# Long tests of a single goroutine, in which the race detector finds nothing, and simulations of
# the code that TestBound runs under it. A name that is wrong here costs time, and no test: race runs it.
PLAIN = Memory|^Test(PlantedBugsAreFound|LostAdmissions|AtTheCapBlockedClientsStay|IdleCountersAreReclaimed
PLAIN := $(PLAIN)|SearchesForMistakesAreBounded|LargeDocumentsAreLookedAtWhole|Hostile|ManyKeys|LargeEdits
PLAIN := $(PLAIN)|HostilePatternsAreWarnedOf|HostileChangesAreWarnedOf|PutRuleInPlace
PLAIN := $(PLAIN)|HostileSubjectsHaveNamesOfTheirOwn|AHashThatGrowsIsntReadWhole|ALogOfRubbishEnds)$$

## race: the tests under the race detector, import rules and the fuzz targets' seeds among them; but not those that plain runs
race: redis upstreams gateways prometheus
	$(GO) test -race -vet=off -p $(JOBS) -timeout 20m -skip '$(PLAIN)' ./...
	for m in bench examples; do (cd $$m && $(GO) test -race -vet=off ./...) || exit 1; done

## plain: without the race detector, what it would falsify or slow down: allocations, memory, simulations, long tests of one goroutine
plain: redis
	$(GO) test -vet=off -p $(JOBS) -run '$(PLAIN)|Alloc|TestBound$$' ./...

## simulate: leases in 10,000 simulated worlds, and the table of what they lose; some minutes
simulate:
	$(GO) test ./lease -run 'Bound|Planted|LostAdmissions' -timeout 60m -v -seeds 10000 -cells

## redis: install redis-server if it isn't there; tests start their own, on free ports
redis:
	@command -v redis-server >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y redis-server"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start redis-server (7.0 or later), which isn't on PATH and can't be installed by apt-get: please install it" >&2; exit 1; }; \
	}

## upstreams: install nginx, Node and Express if they aren't there; tests try spellings of paths on them
upstreams: test/paths/node_modules/.package-lock.json
	@PATH=$$PATH:/usr/sbin; command -v nginx >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y nginx-light"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start nginx, which isn't on PATH and can't be installed by apt-get: please install it" >&2; exit 1; }; \
	}

test/paths/node_modules/.package-lock.json: test/paths/package-lock.json
	@command -v npm >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y nodejs npm"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start Node (18 or later), which isn't on PATH and can't be installed by apt-get: please install it, with npm" >&2; exit 1; }; \
	}
	cd test/paths && npm ci --no-audit --no-fund
	@touch $@

## gateways: install Caddy and HAProxy if they aren't there; tests have them ask Weir. Their services aren't started
gateways:
	@PATH=$$PATH:/usr/sbin; command -v caddy >/dev/null && command -v haproxy >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; policy=/usr/sbin/policy-rc.d; \
		test -e $$policy || { trap "$$sudo rm -f $$policy" EXIT; printf '#!/bin/sh\nexit 101\n' | $$sudo install -m 755 /dev/stdin $$policy; }; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends caddy haproxy"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start caddy and haproxy (2.6 or later), which aren't on PATH and can't be installed by apt-get: please install them" >&2; exit 1; }; \
	}

## test-traefik: what tests do with nginx, Caddy and HAProxy, with Traefik, which is built first: minutes, and gigabytes of Go's caches; not part of test
test-traefik: redis upstreams gateways
	cd test/traefik && nice $(GO) build -o ../../bin/traefik github.com/traefik/traefik/v3/cmd/traefik
	TRAEFIK=$(CURDIR)/bin/traefik $(GO) test -count=1 ./test ./test/paths -run 'GatewaysThatAsk|TestSpellings'

## prometheus: install Prometheus and promtool if they aren't there; tests try alerts and the dashboard on them. Its service isn't started
prometheus:
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; policy=/usr/sbin/policy-rc.d; \
		test -e $$policy || { trap "$$sudo rm -f $$policy" EXIT; printf '#!/bin/sh\nexit 101\n' | $$sudo install -m 755 /dev/stdin $$policy; }; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends prometheus"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start prometheus and promtool, which aren't on PATH and can't be installed by apt-get: please install them" >&2; exit 1; }; \
	}

## fuzz-paths: spellings of paths, tried on nginx, ServeMux, Express and Node, for FUZZTIME
fuzz-paths: upstreams
	$(GO) test -run '^$$' -fuzz FuzzSpellings -fuzztime $(FUZZTIME) ./test/paths

## fuzz: each fuzz target for FUZZTIME (5m)
fuzz: upstreams
	@set -e; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$target $(FUZZTIME)"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done

## bench: Weir beside its rivals, in one run; prints a table with ratios and targets
bench:
	cd bench && $(GO) run .

## bench-redis: the same through Redis, which it starts; with CPU and bytes per counter in Redis
bench-redis: redis
	cd bench && $(GO) run ./redis

## bench-grpc: Envoy's rate limit service beside a gRPC server that does nothing: checks/s with 256 in flight, and the server's CPU; Linux
bench-grpc: redis
	cd bench && $(GO) build -o ../bin/bench-grpc ./grpc && taskset -c 1 ../bin/bench-grpc

## bench-rules: how long until a change of the rules is in force on three nodes under load, and on 200: p50 and p99 of a hundred
bench-rules: redis
	$(GO) test ./test ./internal/rulestore -run '^$$' -bench 'RuleChange|TwoHundredNodes' -benchtime 100x -p 1

## bench-memory: what a node's process takes in a flood of five million keys over HTTP, beside its cap; Linux
bench-memory: build
	$(GO) run ./test/memory

## faults: break Redis in every way, under load, and print what clients see of it; FLAGS="-only REGEX" runs some
faults: redis
	$(GO) run ./test/faults $(FLAGS)

## overload: ten times the load that a node on one core can bear, made on another core: its goodput, and whether limits hold
overload: build redis
	taskset -c 1 $(GO) run ./test/overload $(FLAGS)

## losses: what four processes on one Redis lose beside an exact limiter where clients move between them; 10 minutes; FLAGS="-only 4 -duration 20s"
losses: build redis
	$(GO) run ./test/losses $(FLAGS)

## mutants: break one operator at a time in PKG (ledger; or ., lease, httplimit), and print the share that its tests catch; minutes
PKG ?= ledger
mutants:
	GO=$(GO) tools/mutants/run $(PKG)

help:
	@grep -h '^## ' Makefile | sed 's/^## //'
