module github.com/weirhq/weir/rulefile

go 1.26.0

require (
	github.com/weirhq/weir v0.1.0
	pgregory.net/rapid v1.3.0
)
