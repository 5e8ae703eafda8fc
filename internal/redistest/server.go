package redistest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/weirhq/weir/internal/loopback"
)

// Options change the configuration of a server. By default, a server stores nothing on disk, never evicts keys, and
// allows DEBUG.
type Options struct {
	Config   []string // more lines of redis.conf, such as "maxmemory 10mb"
	Password string   // of the default user; "" means no password
	Env      []string // more environment variables, such as "LD_PRELOAD=…"

	// The fields below are only for a single server.
	ACL []string // lines of an ACL file, such as "user default off" and "user weir on >secret ~* +@all"
	TLS bool     // also listen on TLSAddr, for clients with a certificate
}

// Server is a redis-server process or a Sentinel, together with the address, folder and configuration, which outlast
// the process. Don't call Kill, Restart and Close concurrently. All other methods are safe for concurrent use.
type Server struct {
	Addr    string // its IP address isn't used by other processes: see package loopback
	Socket  string // path of a Unix socket
	TLSAddr string // set with Options.TLS
	Certs   *Certs // set with Options.TLS

	dir      string // has redis.conf, log and data/
	sentinel bool
	conf     []string // redis.conf as it was first written; Redis may rewrite the file
	auth     []string // the command with which Do authenticates
	env      []string
	bus      string // the port for other nodes of a Cluster

	mu      sync.Mutex // guards the fields below
	proc    *process
	stopped bool
}

// Start starts a server, and waits until it is ready.
func Start(o Options) (*Server, error) {
	s, err := newServer(o)
	if err == nil {
		err = s.RestartEmpty()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// New is [Start] for tests. If the server doesn't start, the test fails. The server is closed when the test ends.
func New(tb TB, o Options) *Server {
	tb.Helper()
	s, err := Start(o)
	check(tb, err)
	keep(tb, s)
	return s
}

// newServer prepares a server without starting it. The caller must close the server, even if there is an error.
func newServer(o Options) (s *Server, err error) {
	s = &Server{env: o.Env}
	// Don't use a test's folder: the path of a Unix socket has to be short.
	if s.dir, err = os.MkdirTemp("", "redistest"); err != nil {
		return s, err
	}
	host := loopback.Host()
	addrs, err := freeAddrs(host, 3)
	if err != nil {
		return s, err
	}
	s.Addr, s.Socket, s.bus = addrs[0], s.path("redis.sock"), portOf(addrs[1])
	s.conf = []string{
		"port " + portOf(s.Addr),
		"bind " + host,
		fmt.Sprintf("unixsocket %q", s.Socket),
		fmt.Sprintf("dir %q", s.path("data")),
		"replica-announce-ip " + host,
		`save ""`,
		"appendonly no",
		"maxmemory-policy noeviction",
		"enable-debug-command yes",
		"repl-diskless-sync yes",
		"repl-diskless-sync-delay 0", // replicas are ready seconds sooner
	}
	if o.Password != "" {
		s.conf = append(s.conf, fmt.Sprintf("requirepass %q", o.Password), fmt.Sprintf("masterauth %q", o.Password))
		s.auth = []string{"AUTH", o.Password}
	}
	if o.ACL != nil {
		// Add a user for this package, in case a test disables the default user.
		users := append([]string{"user redistest on >redistest ~* &* +@all"}, o.ACL...)
		if err := s.write("users.acl", users); err != nil {
			return s, err
		}
		s.conf = append(s.conf, fmt.Sprintf("aclfile %q", s.path("users.acl")))
		s.auth = []string{"AUTH", "redistest", "redistest"}
	}
	if o.TLS {
		s.TLSAddr = addrs[2]
		if s.Certs, err = NewCerts(s.dir, host); err != nil {
			return s, err
		}
		s.conf = append(s.conf, "tls-port "+portOf(s.TLSAddr), fmt.Sprintf("tls-ca-cert-file %q", s.Certs.CA),
			fmt.Sprintf("tls-cert-file %q", s.Certs.ServerCert), fmt.Sprintf("tls-key-file %q", s.Certs.ServerKey))
	}
	s.conf = append(s.conf, o.Config...)
	return s, nil
}

// freeAddrs returns addresses of a host with free ports.
func freeAddrs(host string, n int) (addrs []string, err error) {
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, err
		}
		defer l.Close() // close all listeners at the end, so that the ports differ
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

func hostOf(addr string) string {
	host, _, _ := strings.Cut(addr, ":")
	return host
}

func portOf(addr string) string {
	_, port, _ := strings.Cut(addr, ":")
	return port
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) write(name string, lines []string) error {
	return os.WriteFile(s.path(name), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// Restart kills the process if it is running, and starts it again on the same address. Its files remain: a dump written
// by SAVE, the identity of a Cluster node, and what a Sentinel wrote into its configuration.
func (s *Server) Restart() error {
	s.Kill()
	args := []string{s.path("redis.conf")}
	if s.sentinel {
		args = append(args, "--sentinel")
	}
	proc, err := spawn(s.path("log"), s.env, cmp.Or(os.Getenv("WEIR_TEST_REDIS"), "redis-server"), args...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.proc, s.stopped = proc, false
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = Until(ctx, func(ctx context.Context) error {
		if proc.gone() {
			cancel()
			return errors.New("it ended at once")
		}
		_, err := s.Do(ctx, "PING")
		return err
	})
	if err != nil {
		return fmt.Errorf("redis-server on %s doesn't start: %w\n%s", s.Addr, err, s.Log())
	}
	return nil
}

// RestartEmpty is Restart without the files: the server is as it was when it first started. A node of a Cluster is then
// no longer part of the Cluster.
func (s *Server) RestartEmpty() error {
	s.Kill()
	data := s.path("data")
	if err := errors.Join(os.RemoveAll(data), os.Mkdir(data, 0o700), s.write("redis.conf", s.conf)); err != nil {
		return err
	}
	return s.Restart()
}

// Kill ends the process with SIGKILL, even if it is stopped, and waits until it has ended.
func (s *Server) Kill() {
	s.mu.Lock()
	proc := s.proc
	s.mu.Unlock()
	if proc != nil {
		proc.kill()
	}
}

// Stop freezes the process with SIGSTOP. Its connections stay open, but it doesn't answer.
func (s *Server) Stop() error {
	ran, err := s.up(), s.signal(syscall.SIGSTOP, true)
	if err != nil || !ran { // if the process was already stopped, Wait4 wouldn't return
		return err
	}
	for {
		if _, err := syscall.Wait4(s.Pid(), nil, syscall.WUNTRACED, nil); err != syscall.EINTR {
			return err // nil if the process has stopped
		}
	}
}

// Cont continues a stopped process.
func (s *Server) Cont() error { return s.signal(syscall.SIGCONT, false) }

func (s *Server) signal(sig syscall.Signal, stopped bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.proc.signal(sig); err != nil {
		return fmt.Errorf("%s: %v: %w", s.Addr, sig, err)
	}
	s.stopped = stopped
	return nil
}

// Pid returns the ID of the process that was started last.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.cmd.Process.Pid
}

// up reports whether the process is running and not stopped.
func (s *Server) up() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc != nil && !s.stopped && !s.proc.gone()
}

// Log returns the server's output since Start, including the output after restarts.
func (s *Server) Log() string {
	text, err := os.ReadFile(s.path("log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Close kills the process and removes its folder.
func (s *Server) Close() error {
	s.Kill()
	return os.RemoveAll(s.dir) // if dir is "", this removes nothing
}
