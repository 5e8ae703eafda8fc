package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a child that ends with us.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has been waited for
}

// spawn starts a command whose output is appended to the file log, with more in its environment.
func spawn(log string, env []string, name string, args ...string) (*process, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, fmt.Errorf("%s isn't installed (make redis does it): %w", name, err)
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = out, out, bound
	started := make(chan error)
	go func() {
		defer close(p.done)
		// The kernel binds the child to this thread, not to the process, and the
		// runtime ends idle threads. So the thread is kept until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // killed is how it is meant to end
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// kill also ends a process that is stopped. It returns when it is gone.
func (p *process) kill() {
	_ = p.signal(syscall.SIGKILL) // fails only when it is gone already
	<-p.done
}

func (p *process) gone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
