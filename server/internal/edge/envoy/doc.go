// Package envoy serves Envoy's rate limit service, version 3: over gRPC, and as JSON over HTTP.
//
// A request has a domain and descriptors, which are lists of keys and values. Its limits come from
// one of three places:
//
//   - a folder of envoyproxy/ratelimit's configuration files. config.go defines what they mean,
//     file.go and yaml.go read them, descriptor.go builds the configuration, folder.go follows the
//     files, and limits.go decides requests by them;
//   - an xDS server with the same limits: resource.go reads what it sends, and xds.go follows it;
//   - without either, Weir's own rules: rules.go turns descriptors into a [weir.Request].
//
// link.go joins rules that name a descriptor with a configuration, or makes a configuration of them.
//
// Requests arrive in service.go, over HTTP too, which also reports the state of the configuration.
// answer.go builds the answer, and server.go is the gRPC server with its bounds. On the same server,
// authz.go is Envoy's authorization service (ext_authz), for which package forwardauth decides.
package envoy
