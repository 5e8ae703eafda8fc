// Package client is for programs that call a limited service, and for programs that ask Weir.
//
// [Transport] is an http.RoundTripper for any service that limits its clients, Weir in front of it or
// not. It reads what answers say of limits, slows down before they are used up, and when a request is
// refused all the others to the same host wait as well:
//
//	http.Client{Transport: &client.Transport{}}
//
// [Client] asks a node of Weir over HTTP: typed checks, of which those made at the same time travel
// together, and a fallback in this process for when no node can be reached. What a check reserved, it settles, and the slots of
// requests in flight, it renews.
package client
