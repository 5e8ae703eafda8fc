//go:build !linux

package redistest

import "syscall"

// bound is nil, because only Linux has Pdeathsig. So servers outlive a program that is killed.
var bound *syscall.SysProcAttr
