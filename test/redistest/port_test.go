package redistest_test

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// A port stays ours between a kill and a restart, though nobody listens.
func TestPortIsKept(t *testing.T) {
	s := redistest.New(t, redistest.Options{})
	s.Kill()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	addr := netip.MustParseAddrPort(s.Addr)
	at := &syscall.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	if err := syscall.Bind(fd, at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("another bound it: %v", err)
	}
	if conn, err := net.Dial("tcp", s.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("another listens: got %v, %v", conn, err)
	}
	if err := s.Restart(); err != nil {
		t.Error(err)
	}
}
