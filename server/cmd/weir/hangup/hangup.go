// Package hangup catches hangups (SIGHUP) from a node's first moment. By habit they tell a service to read its files again, and one
// that isn't caught ends the process: a supervisor that asks for a reload just after a start would end the node.
//
// A package is initialized as soon as what it imports is, and this one imports next to nothing. The command's main waits for all
// others, the generated ones of gRPC among them, which takes ten times as long.
package hangup

import (
	"os"
	"os/signal"
	"syscall"
)

// Signals has the hangups of a node. Other commands end with their terminal.
var Signals = make(chan os.Signal, 1)

func init() {
	if len(os.Args) < 2 || os.Args[1] == "serve" { // without arguments, it may be a node by its name
		Catch()
	}
}

// Catch has hangups go to Signals, and end nothing.
func Catch() { signal.Notify(Signals, syscall.SIGHUP) }
