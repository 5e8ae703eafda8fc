// Package hangup catches hangups (SIGHUP) from a node's first moment. By convention, this signal
// tells a service to reread its files. Without a handler, it ends the process, so a supervisor that
// asks for a reload right after the start would end the node.
//
// A package is initialized as soon as its imports are initialized, and this one imports almost
// nothing. The command's main function runs only after all other packages are initialized,
// including gRPC's generated ones, which takes ten times as long.
package hangup

import (
	"os"
	"os/signal"
	"syscall"
)

// Signals receives the hangups of a node. Other commands end when their terminal closes.
var Signals = make(chan os.Signal, 1)

func init() {
	if len(os.Args) < 2 || os.Args[1] == "serve" { // a node may also be started by the name of the program, without arguments
		Catch()
	}
}

// Catch sends hangups to Signals. Without it, they would end the process.
func Catch() { signal.Notify(Signals, syscall.SIGHUP) }
