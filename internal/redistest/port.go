package redistest

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// port is a loopback port that is ours until closed, also while no server
// listens on it: a socket bound to it, which doesn't listen, keeps other tests and
// outgoing connections from taking it between a kill and a restart. Both
// sockets allow reuse, so Redis may bind and listen beside it.
type port struct {
	number int
	fd     int
}

func reserve() (*port, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	p := &port{fd: fd}
	// Reuse is allowed after the bind alone: before, the kernel might give a port that another holds.
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reserve a port: %w", err), p.close())
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("getsockname", err), p.close())
	}
	p.number = name.(*syscall.SockaddrInet4).Port
	return p, nil
}

func (p *port) addr() string { return fmt.Sprintf("127.0.0.1:%d", p.number) }

func (p *port) close() error { return syscall.Close(p.fd) }
