// Package hangup catches hangups (SIGHUP) from a node's first moment. By convention they tell a
// service to reread its files, and an uncaught one ends the process: a supervisor that asks for a
// reload right after a start would end the node.
//
// A package is initialized as soon as its imports are, and this one imports next to nothing. The
// command's main waits for all other packages, including the generated ones of gRPC, which takes
// ten times as long.
package hangup

import (
	"os"
	"os/signal"
	"syscall"
)

// Signals receives the hangups of a node. Other commands end with their terminal.
var Signals = make(chan os.Signal, 1)

func init() {
	if len(os.Args) < 2 || os.Args[1] == "serve" { // without arguments, it may be a node by its name
		Catch()
	}
}

// Catch sends hangups to Signals, so that they don't end the process.
func Catch() { signal.Notify(Signals, syscall.SIGHUP) }
