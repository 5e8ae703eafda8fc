package test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weirhq/weir/internal/loopback"
)

// TestCommands runs the scripts in testdata/script against the command line.
func TestCommands(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("WEIR_GRPC", "127.0.0.1:0")
			env.Setenv("GORACE", os.Getenv("GORACE"))
			env.Setenv("PATH", filepath.Dir(binary)+string(os.PathListSeparator)+env.Getenv("PATH"))
			for _, name := range []string{"HTTP", "ADMIN"} {
				addr, err := freeAddress()
				if err != nil {
					return err
				}
				env.Setenv(name, addr)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"await": await},
	})
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", loopback.Host()+":0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// await requests a URL until the response is 200.
func await(ts *testscript.TestScript, _ bool, args []string) {
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		if res, err := http.Get(args[0]); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
	}
	ts.Fatalf("%s doesn't answer", args[0])
}
