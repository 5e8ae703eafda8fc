//go:build !linux

package redistest

import "syscall"

// bound is empty: without Linux's Pdeathsig, servers outlive a program that is killed.
var bound *syscall.SysProcAttr
