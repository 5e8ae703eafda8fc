package redistest

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// bound has the kernel kill the child when the thread that forked it ends.
var bound = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

// asleep says whether SIGSTOP has taken hold of a process: a signal is sent
// before it is obeyed.
func asleep(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The state follows the name, which stands in parentheses and may hold any.
	_, state, _ := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(" "))
	return bytes.HasPrefix(state, []byte("T"))
}
