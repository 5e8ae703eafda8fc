// Package forwardauth answers gateways that ask about each request before they forward it: nginx (auth_request), Caddy
// and Traefik (forward auth), HAProxy (Lua), and Envoy (ext_authz over HTTP; package envoy has it over gRPC).
//
// A gateway tells of its client's request in headers. From these the request is put together as the gateway got it, and is
// then limited as every other: the same request counts under the same key whether it comes this way, through
// package gateway or through a middleware.
//
// Who could write those headers could pass for any client. So they are read from trusted peers alone, only those that the
// gateway at hand sets itself, and only if there is exactly one of each: a second one would be the client's.
package forwardauth
