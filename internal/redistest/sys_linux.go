package redistest

import "syscall"

// bound makes the kernel kill the child when the thread that forked it ends.
var bound = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
