module github.com/weirhq/weir/internal/node

go 1.26.0

require (
	github.com/fsnotify/fsnotify v1.10.1
	github.com/redis/rueidis v1.0.79
	github.com/weirhq/weir v0.1.0
	github.com/weirhq/weir/internal/rediscall v0.1.0
	github.com/weirhq/weir/redisstore v0.1.0
	github.com/weirhq/weir/rulefile v0.1.0
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.3.0
)

require golang.org/x/sys v0.48.0 // indirect
