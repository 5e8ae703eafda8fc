// Package client is for programs that call a limited service, and for programs that ask Weir.
//
// [Transport] is an http.RoundTripper for any service that limits its clients, with Weir or without. It reads the limits in
// responses and slows down before they are used up. When a request is refused, all requests to the same host wait:
//
//	http.Client{Transport: &client.Transport{}}
//
// [Client] asks a node of Weir over HTTP. It sends concurrent checks in one call, settles reservations, and renews the slots of
// requests in flight. While no node can be reached, a fallback in this process decides.
package client
