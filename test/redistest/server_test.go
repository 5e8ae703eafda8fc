package redistest_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/internal/redistest"
)

// If this variable is set, the test's program starts a server, prints its socket, and waits to be killed.
const orphan = "REDISTEST_ORPHAN"

func TestMain(m *testing.M) {
	if os.Getenv(orphan) != "" {
		s, err := redistest.Start(redistest.Options{})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(s.Socket)
		select {}
	}
	goleak.VerifyTestMain(m)
}

// must sends a command that has to succeed.
func must(t *testing.T, s *redistest.Server, args ...string) any {
	t.Helper()
	v, err := s.Do(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func soon(t *testing.T, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := redistest.Until(ctx, check); err != nil {
		t.Fatal(err)
	}
}

func TestSingle(t *testing.T) {
	s := redistest.New(t, redistest.Options{Config: []string{"maxmemory 50mb"}})
	must(t, s, "SET", "a", "1")
	if got := must(t, s, "GET", "a"); got != "1" {
		t.Errorf("GET a: got %v", got)
	}
	if got := must(t, s, "GET", "b"); got != nil {
		t.Errorf("GET b: got %v", got)
	}
	if _, err := s.Do(t.Context(), "INCR"); !errors.As(err, new(redistest.Error)) {
		t.Errorf("INCR without a key: got %v", err)
	}
	must(t, s, "DEBUG", "SLEEP", "0")
	for name, want := range map[string]string{
		"maxmemory": "52428800", "maxmemory-policy": "noeviction", "save": "", "appendonly": "no",
	} {
		if got := fmt.Sprint(must(t, s, "CONFIG", "GET", name)); got != fmt.Sprintf("[%s %s]", name, want) {
			t.Errorf("config: got %s, want %s", got, want)
		}
	}

	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := send(t, conn, 0, "GET", "a"); err != nil || got != "1" {
		t.Errorf("by TCP: got %v, %v", got, err)
	}
}

func TestBadConfiguration(t *testing.T) {
	s, err := redistest.Start(redistest.Options{Config: []string{"nonsense yes"}})
	if err == nil {
		t.Fatal(errors.Join(errors.New("the server started"), s.Close()))
	}
	if !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("the error doesn't show Redis' own: %v", err)
	}
}

// WEIR_TEST_REDIS sets the path of the binary.
func TestBinary(t *testing.T) {
	t.Setenv("WEIR_TEST_REDIS", "/nowhere/redis-server")
	if _, err := redistest.Start(redistest.Options{}); err == nil || !strings.Contains(err.Error(), "/nowhere/redis-server isn't installed") {
		t.Errorf("got %v", err)
	}
}

func TestTLS(t *testing.T) {
	s := redistest.New(t, redistest.Options{TLS: true})
	must(t, s, "SET", "a", "1")
	config, err := s.Certs.Client()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", s.TLSAddr, config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := send(t, conn, 0, "GET", "a"); err != nil || got != "1" {
		t.Errorf("got %v, %v", got, err)
	}

	config.Certificates = nil
	stranger, err := tls.Dial("tcp", s.TLSAddr, config)
	if err != nil {
		return
	}
	defer stranger.Close() // in TLS 1.3, a client learns that it was rejected when it reads
	if got, err := send(t, stranger, 0, "GET", "a"); err == nil {
		t.Errorf("without a certificate: got %v", got)
	}
}

func TestPassword(t *testing.T) {
	s := redistest.New(t, redistest.Options{Password: "secret"})
	must(t, s, "PING")
	conn, err := net.Dial("unix", s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := send(t, conn, 0, "PING"); err != nil || !strings.HasPrefix(got, "NOAUTH") {
		t.Errorf("without a password: got %v, %v", got, err)
	}
}

func TestACL(t *testing.T) {
	s := redistest.New(t, redistest.Options{ACL: []string{"user default off", "user weir on >secret ~weir:* +set"}})
	must(t, s, "GET", "anything")
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, step := range []struct{ command, want string }{
		{"SET weir:a 1", "NOAUTH"},
		{"AUTH weir secret", "OK"},
		{"SET weir:a 1", "OK"},
		{"SET other:a 1", "NOPERM"},
		{"GET weir:a", "NOPERM"},
	} {
		got, err := send(t, conn, 0, strings.Fields(step.command)...)
		if err != nil || !strings.HasPrefix(got, step.want) {
			t.Errorf("%s: got %v, %v, want %s", step.command, got, err, step.want)
		}
	}
}

func TestKillAndRestart(t *testing.T) {
	s := redistest.New(t, redistest.Options{})
	must(t, s, "SET", "a", "1")
	must(t, s, "SAVE")
	must(t, s, "SET", "a", "2")
	s.Kill()
	if conn, err := net.Dial("tcp", s.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("killed: got %v, %v", conn, err)
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := must(t, s, "GET", "a"); got != "1" {
		t.Errorf("restarted: got %v", got)
	}
	if err := s.RestartEmpty(); err != nil {
		t.Fatal(err)
	}
	if got := must(t, s, "GET", "a"); got != nil {
		t.Errorf("restarted without its files: got %v", got)
	}
}

func TestStopAndCont(t *testing.T) {
	s := redistest.New(t, redistest.Options{})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got, err := s.Do(ctx, "PING"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stopped: got %v, %v", got, err)
	}
	if err := s.Cont(); err != nil {
		t.Fatal(err)
	}
	must(t, s, "PING")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := s.Cont(); err == nil {
		t.Error("a process that is gone was continued")
	}
}

func TestMeasures(t *testing.T) {
	s := redistest.New(t, redistest.Options{})
	cpu, err := s.CPU(t.Context())
	if err != nil || cpu <= 0 {
		t.Errorf("CPU: got %v, %v", cpu, err)
	}
	before, err := s.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	must(t, s, "SET", "a", strings.Repeat("x", 1<<20))
	after, err := s.Memory(t.Context())
	if err != nil || after-before < 1<<20 {
		t.Errorf("memory: got %d, then %d, %v", before, after, err)
	}
}

func TestCloseStopsTheServer(t *testing.T) {
	s, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pid := s.Pid()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process is there: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(s.Socket)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is there: %v", err)
	}
	if _, err := s.Do(t.Context(), "PING"); err == nil {
		t.Error("the server responds")
	}
}

// If a program is killed before it can clean up, its servers stop, too.
func TestNoOrphans(t *testing.T) {
	program := exec.Command(os.Args[0])
	program.Env = append(os.Environ(), orphan+"=1")
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err := errors.Join(err, program.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = program.Wait() // killed
	socket := strings.TrimSpace(line)
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(socket)) })
	// The process itself may stay in the process table for a while, until its new parent reaps it.
	soon(t, func(context.Context) error {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return errors.Join(errors.New("the server is there"), conn.Close())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatal(err)
		}
		return nil
	})
}
