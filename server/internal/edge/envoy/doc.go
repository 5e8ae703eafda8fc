// Package envoy answers Envoy's rate limit service, version 3: over gRPC, and as JSON over HTTP.
//
// A request has a domain and descriptors, which are lists of keys and values. What limits them comes
// from one of three places:
//
//   - a folder of envoyproxy/ratelimit's configuration files, served as they are: config.go has what
//     they mean, file.go how they are read, descriptor.go what is made of them, folder.go how they are
//     followed, limits.go how a request is decided by them;
//   - an xDS server that has the same limits: resource.go reads what it sends, xds.go follows it;
//   - without either, Weir's own rules: rules.go makes a [weir.Request] of the descriptors.
//
// link.go joins rules that name a descriptor with a configuration, or makes one of them.
//
// source.go says where a configuration comes from, and how the newest stands.
//
// service.go is where a request comes in, answer.go makes the answer, server.go is the gRPC server
// with its bounds, http.go has /json and /healthcheck.
//
// On the same server, authz.go is Envoy's authorization service (ext_authz): package forwardauth
// decides what it asks.
package envoy
