// Package node starts weir, and servers to compare it with, as processes for measurements. Programs that import it have the
// flag -weir.
package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/rawhttp"
)

var binary = flag.String("weir", "bin/weir", "the weir binary to run")

// Process is a running server.
type Process struct {
	Addr string // host:port on which it listens
	cmd  *exec.Cmd
}

// Options configure a weir process.
type Options struct {
	Rules  string   // text of the rule file
	Store  string   // URL of a Redis; "" keeps counters in memory
	Core   string   // cores that it may use, in the syntax of taskset; "" means all
	Listen string   // flag of the listener to measure; "" means --http. The other listeners are off
	Flags  []string // more flags of weir serve
}

// Start starts weir serve until the end of the measurement. It waits until weir listens and, if it serves HTTP, has reached
// its store.
func Start(r *command.Run, o Options) *Process {
	dir := r.TempDir()
	rules := filepath.Join(dir, "rules.yaml")
	command.Check(os.WriteFile(rules, []byte(o.Rules), 0o600))
	args := []string{"serve", "--rules", rules, "--data", filepath.Join(dir, "data"), "--http", "", "--grpc", "", "--admin", "",
		"--log-level", "warn", "--log-format", "json"}
	if o.Store != "" {
		args = append(args, "--store", o.Store)
	}
	args = append(args, o.Flags...)
	listen := cmp.Or(o.Listen, "--http")
	p := start(r, o.Core, *binary, append(args, listen)...)
	if o.Store != "" && listen == "--http" {
		until(r, p.reachedStore)
	}
	return p
}

// floorFlag is the argument that makes this program serve as a floor: see [StartFloor].
const floorFlag = "-floor"

// StartFloor starts this program again as a floor. A floor is a server that does only what every server must do; other
// servers are compared with it.
func StartFloor(r *command.Run, core string) *Process {
	return start(r, core, command.Must(os.Executable()), floorFlag)
}

// ServeFloor calls serve and doesn't return, if this process was started by [StartFloor]. Otherwise it does nothing.
// Call it first in main.
func ServeFloor(serve func(net.Listener) error) {
	if len(os.Args) != 3 || os.Args[1] != floorFlag {
		return
	}
	l, err := net.Listen("tcp", os.Args[2])
	if err == nil {
		err = serve(l)
	}
	fmt.Fprintln(os.Stderr, "floor:", err)
	os.Exit(2)
}

// start runs a program with the address to listen on as its last argument, and waits until the program listens. At the
// end of the measurement, the program gets the time to drain.
func start(r *command.Run, core, program string, args ...string) *Process {
	listener := command.Must(net.Listen("tcp", "127.0.0.1:0"))
	p := &Process{Addr: listener.Addr().String()}
	listener.Close()
	args = append(args, p.Addr)
	if core != "" {
		program, args = "taskset", append([]string{"-c", core, program}, args...)
	}
	p.cmd = exec.CommandContext(r, program, args...)
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.Stderr = os.Stderr
	command.Check(p.cmd.Start())
	r.Cleanup(func() {
		_ = p.cmd.Cancel()
		_ = p.cmd.Wait() // the process may have ended already
	})
	until(r, func(context.Context) error {
		conn, err := net.Dial("tcp", p.Addr)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return p
}

// until calls check repeatedly until it succeeds, for at most 20 s.
func until(r *command.Run, check func(context.Context) error) {
	ctx, cancel := context.WithTimeout(r, 20*time.Second)
	defer cancel()
	command.Check(redistest.Until(ctx, check))
}

func (p *Process) reachedStore(context.Context) error {
	conn := rawhttp.Conn{Addr: p.Addr}
	defer conn.Close()
	a, err := conn.Do([]byte("GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
	if err != nil {
		return err
	}
	var ready struct{ Store struct{ Status string } }
	if err := json.Unmarshal(a.Body, &ready); err != nil {
		return err
	}
	if ready.Store.Status != "up" {
		return fmt.Errorf("the node's store is %q", ready.Store.Status)
	}
	return nil
}

// CPU returns the CPU time that the process has used so far, in steps of 10 ms.
func (p *Process) CPU(context.Context) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/PID/stat: %q", text)
	}
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// PeakMemory returns the process's peak resident memory so far, in MiB.
func (p *Process) PeakMemory() int {
	text := command.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)))
	_, after, _ := strings.Cut(string(text), "VmHWM:")
	return command.Must(strconv.Atoi(strings.Fields(after + " -")[0])) >> 10
}
