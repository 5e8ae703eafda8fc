package serve

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// onlyKnown is a socket filter that drops segments with SYN but without ACK. Such segments ask for a new connection.
// Accepted connections inherit the filter from their listener, but never receive such segments.
var onlyKnown = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13}, // loads the flags in the TCP header
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x12},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x02, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
}

// refuseNew makes the kernel ignore attempts to open new connections to a TCP port, and reports whether that worked.
// Connections whose handshake has begun can still be accepted. A client that is ignored tries again after a second. By
// then, the port is closed.
func refuseNew(l net.Listener) (refused bool) {
	control(l, func(fd int) {
		program := unix.SockFprog{Len: uint16(len(onlyKnown)), Filter: &onlyKnown[0]}
		refused = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program) == nil
	})
	return refused
}

func queued(l net.Listener) (n int) {
	control(l, func(fd int) {
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = int(info.Unacked) // for a listener, this is the length of its queue
		}
	})
	return n
}

func control(l net.Listener, f func(fd int)) {
	if s, ok := l.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { f(int(fd)) })
		}
	}
}
