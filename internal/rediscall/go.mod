module github.com/weirhq/weir/internal/rediscall

go 1.26.0

require github.com/redis/rueidis v1.0.79

require (
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
