module github.com/weirhq/weir

go 1.26.0

require (
	github.com/felixge/httpsnoop v1.1.0
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.3.0
)
