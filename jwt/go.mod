module github.com/weirhq/weir/jwt

go 1.26.0

require (
	github.com/MicahParks/jwkset v0.11.3
	github.com/golang-jwt/jwt/v5 v5.3.1
	github.com/weirhq/weir v0.1.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/felixge/httpsnoop v1.1.0 // indirect
	golang.org/x/time v0.15.0 // indirect
)
