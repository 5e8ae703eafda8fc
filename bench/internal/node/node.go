// Package node starts weir, and servers to compare it with, as processes for measurements.
package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// Process is a running server.
type Process struct {
	Addr string // host:port on which it listens
	cmd  *exec.Cmd
	dir  string // removed by Stop
}

// Options configure a weir process.
type Options struct {
	Binary string   // path of weir
	Rules  string   // text of the rule file
	Store  string   // URL of a Redis; "" keeps counters in memory
	Core   string   // cores that it may use, in the syntax of taskset; "" means all
	Listen string   // flag of the listener to measure; "" means --http. The other listeners are off
	Flags  []string // more flags of weir serve
}

// Start starts weir serve, and waits until it listens and, if it serves HTTP, has reached its store.
func Start(ctx context.Context, o Options) (*Process, error) {
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		return nil, err
	}
	rules := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(rules, []byte(o.Rules), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	args := []string{"serve", "--rules", rules, "--data", filepath.Join(dir, "data"), "--http", "", "--grpc", "", "--admin", "",
		"--log-level", "warn", "--log-format", "json"}
	if o.Store != "" {
		args = append(args, "--store", o.Store)
	}
	args = append(args, o.Flags...)
	listen := cmp.Or(o.Listen, "--http")
	p, err := start(ctx, dir, o.Core, o.Binary, append(args, listen)...)
	if err != nil || o.Store == "" || listen != "--http" {
		return p, err
	}
	if err := p.until(ctx, p.reachedStore); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// floorFlag is the argument with which this program serves a floor.
const floorFlag = "-floor"

// StartFloor starts this program again as a floor: a server that does only what every server must do, to compare with.
func StartFloor(ctx context.Context, core string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(ctx, "", core, self, floorFlag)
}

// ServeFloor serves a floor, and doesn't return, if this process was started by [StartFloor]. Call it first in main.
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

// start runs a program with the address to listen on as its last argument, and waits until it listens.
func start(ctx context.Context, dir, core, program string, args ...string) (*Process, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Process{Addr: listener.Addr().String(), dir: dir}
	listener.Close()
	args = append(args, p.Addr)
	if core != "" {
		program, args = "taskset", append([]string{"-c", core, program}, args...)
	}
	p.cmd = exec.CommandContext(ctx, program, args...)
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	err = p.until(ctx, func(context.Context) error {
		conn, err := net.Dial("tcp", p.Addr)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// until calls check repeatedly until it succeeds, for at most 20 s.
func (p *Process) until(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return redistest.Until(ctx, check)
}

func (p *Process) reachedStore(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Addr+"/readyz", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var ready struct{ Store struct{ Status string } }
	if err := json.NewDecoder(res.Body).Decode(&ready); err != nil {
		return err
	}
	if ready.Store.Status != "up" {
		return fmt.Errorf("the node's store is %q", ready.Store.Status)
	}
	return nil
}

// Stop lets the process drain, and waits until it has ended.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait() // the process may have ended already
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
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
func (p *Process) PeakMemory() (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(after + " -")[0])
	return kib >> 10, err
}
