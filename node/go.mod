module github.com/weirhq/weir/node

go 1.26.0

require (
	github.com/weirhq/weir v0.1.0
	github.com/weirhq/weir/internal/node v0.1.0
	github.com/weirhq/weir/redisstore v0.1.0
	github.com/weirhq/weir/tracing v0.1.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/felixge/httpsnoop v1.1.0 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	github.com/weirhq/weir/internal/rediscall v0.1.0 // indirect
	github.com/weirhq/weir/rulefile v0.1.0 // indirect
	go.opentelemetry.io/otel v1.47.0 // indirect
	go.opentelemetry.io/otel/trace v1.47.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
