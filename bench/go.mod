module github.com/weirhq/weir/bench

go 1.26.0

replace github.com/weirhq/weir => ../

require (
	github.com/go-chi/httprate v0.16.1
	github.com/sethvargo/go-limiter v0.7.1
	github.com/throttled/throttled/v2 v2.15.0
	github.com/ulule/limiter/v3 v3.11.2
	github.com/weirhq/weir v0.0.0-00010101000000-000000000000
	golang.org/x/time v0.16.0
)

require (
	github.com/MicahParks/jwkset v0.11.3 // indirect
	github.com/felixge/httpsnoop v1.1.0 // indirect
	github.com/golang-jwt/jwt/v5 v5.3.1 // indirect
	github.com/hashicorp/golang-lru v0.5.4 // indirect
	github.com/klauspost/cpuid/v2 v2.2.10 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/zeebo/xxh3 v1.0.2 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
