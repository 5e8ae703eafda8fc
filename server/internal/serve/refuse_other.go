//go:build !linux

package serve

import "net"

// refuseNew can't refuse connections without closing the port here.
func refuseNew(net.Listener) bool { return false }

func queued(net.Listener) int { return 0 }
