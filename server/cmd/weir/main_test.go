package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestCommandsThatDoNotExist(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"keys", "unblock", "x"}, `there is no command "weir keys unblock": write weir keys block KEY --remove`},
		{[]string{"keys", "unallow", "x"}, "write weir keys allow PATTERN --remove"},
		{[]string{"keys", "unblock", "--help"}, "write weir keys block KEY --remove"},
		{[]string{"servee", "--help"}, `there is no command "weir servee": did you mean weir serve?`},
		{[]string{"rules", "aply", "--help"}, `there is no command "weir rules aply": did you mean weir rules apply?`},
		{[]string{"regions", "drian", "ap"}, `there is no command "weir regions drian": did you mean weir regions drain?`},
		{[]string{"regions", "remove", "ap"}, `there is no command "weir regions remove": write weir regions drain REGION, or weir regions forget REGION if it is dead`},
		{[]string{"regions", "delete", "ap"}, "write weir regions drain REGION, or weir regions forget REGION if it is dead"},
		{[]string{"help", "servee"}, "did you mean weir serve?"},
		{[]string{"help", "rules", "aply"}, "did you mean weir rules apply?"},
	} {
		d := runWith(t, "", c.args...)
		d.expect(t, exitUsage, "", c.want)
		if d.stdout != "" {
			t.Errorf("%v prints the help of another command:\n%s", c.args, d.stdout)
		}
	}
	for _, args := range [][]string{{"help"}, {"--help"}, {"help", "rules"}, {"rules", "--help"}, {"help", "rules", "apply"}, {"rules", "apply", "x", "--help"}, {"help", "help"}, {"completion", "bash", "--help"}} {
		runWith(t, "", args...).expect(t, 0, "--help", "")
	}
}

// Every flag of serve is in one of the groups that help shows.
func TestFlagsOfServeAreInGroups(t *testing.T) {
	d := runWith(t, "", "serve", "--help")
	d.expect(t, 0, "\nPorts:\n      --http ", "")
	serveCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(d.stdout, "--"+f.Name+" ") {
			t.Errorf("put --%s into serveGroups", f.Name)
		}
	})
}
