package main

import "testing"

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
		{[]string{"help", "servee"}, "did you mean weir serve?"},
		{[]string{"help", "rules", "aply"}, "did you mean weir rules apply?"},
	} {
		d := runWith(t, "", c.args...)
		d.expect(t, exitUsage, "", c.want)
		if d.stdout != "" {
			t.Errorf("%v prints help of something else:\n%s", c.args, d.stdout)
		}
	}
	for _, args := range [][]string{{"help"}, {"--help"}, {"help", "rules"}, {"rules", "--help"}, {"help", "rules", "apply"}, {"rules", "apply", "x", "--help"}, {"help", "help"}, {"completion", "bash", "--help"}} {
		runWith(t, "", args...).expect(t, 0, "--help", "")
	}
}
