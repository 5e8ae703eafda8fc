package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a child process that the kernel kills when this process ends.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// spawn starts a command. It appends the output to the file log, and adds env to the environment.
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
		// The kernel binds the child to this thread, not to the process, and the Go runtime ends idle threads. So keep
		// the thread until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // an error is expected, because the process is usually killed
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// kill kills the process, even if it is stopped, and waits until it has ended.
func (p *process) kill() {
	_ = p.signal(syscall.SIGKILL) // fails only if the process has ended already
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
