//go:build !linux

package serve

import "net"

// refuseNew returns false: on this system, connections can't be refused without closing the port.
func refuseNew(net.Listener) bool { return false }

func queued(net.Listener) int { return 0 }
