// Package envoy serves Envoy's rate limit service, version 3: over gRPC, and as JSON over HTTP.
//
// A request has a domain and descriptors, which are lists of keys and values. Its limits come from
// one of three places:
//
//   - a folder of envoyproxy/ratelimit's configuration files. file.go and yaml.go read them,
//     config.go builds the configuration, folder.go follows the files, and limits.go decides
//     requests by them;
//   - an xDS server with the same limits: resource.go reads what it sends, and xds.go follows it;
//   - without either, Weir's own rules: rules.go turns descriptors into a [weir.Request].
//
// link.go combines a configuration with rules that name its descriptors. Without a configuration, it
// makes one from those rules.
//
// service.go handles requests, over gRPC and HTTP, and reports the state of the configuration.
// answer.go builds the response, and server.go is the gRPC server with its limits on connections. On
// the same server, authz.go serves Envoy's authorization service (ext_authz), whose decisions
// package forwardauth makes.
package envoy
