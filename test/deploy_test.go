package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const deploy = "../deploy/"

// alert is an alert of deploy/prometheus/alerts.yaml.
type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	readYAML(t, deploy+"prometheus/alerts.yaml", &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 11 {
		t.Fatalf("%d alerts", len(all))
	}
	return all
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, file)), into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// prometheusTool returns the path of promtool or prometheus.
func prometheusTool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: make prometheus installs it", err)
	}
	return path
}

// Each alert fires when it should, and doesn't fire just below its threshold. alerts_test.yaml has both cases for each
// alert.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	promtool := prometheusTool(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "alerts.yaml"},
		{"test", "rules", "alerts_test.yaml"},
		{"check", "config", "--syntax-only", "prometheus.yaml"},
	} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = deploy + "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	var cases struct {
		Tests []struct {
			Alerts []struct {
				Name string `yaml:"alertname"`
				Want []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	readYAML(t, deploy+"prometheus/alerts_test.yaml", &cases)
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, c := range cases.Tests {
		for _, a := range c.Alerts {
			if len(a.Want) > 0 {
				fires[a.Name] = true
			} else {
				silent[a.Name] = true
			}
		}
	}
	for _, a := range alerts(t) {
		if !fires[a.Alert] || !silent[a.Alert] {
			t.Errorf("alerts_test.yaml must have a case in which %s fires, and one in which it doesn't", a.Alert)
		}
	}
}

// Each alert has a section in the runbooks that says what to look at and what to do.
func TestAlertsHaveRunbooks(t *testing.T) {
	_, runbooks, found := strings.Cut(read(t, "../docs/guides/runbooks.md"), "\n## Runbooks\n")
	if !found {
		t.Fatal("docs/guides/runbooks.md has no runbooks")
	}
	runbooks, _, _ = strings.Cut(runbooks, "\n## ")
	sections := map[string]string{}
	for _, s := range strings.Split(runbooks, "\n### ")[1:] {
		name, body, _ := strings.Cut(s, "\n")
		sections[name] = body
	}
	for _, a := range alerts(t) {
		body, found := sections[a.Alert]
		for _, part := range []string{"**Look.**", "**Do.**", "**Harmless**"} {
			if !strings.Contains(body, part) {
				t.Errorf("docs/guides/runbooks.md: the runbook of %s lacks %s", a.Alert, part)
			}
		}
		url := "https://github.com/weirhq/weir/blob/main/docs/guides/runbooks.md#" + strings.ToLower(a.Alert)
		if !found || a.Annotations["runbook_url"] != url || a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s: %v", a.Alert, a.Annotations)
		}
		if s := a.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity %q", a.Alert, s)
		}
		delete(sections, a.Alert)
	}
	for name := range sections {
		t.Errorf("docs/guides/runbooks.md has a runbook of %s, which is no alert", name)
	}
}

// The files, flags, ports and volumes that the compose file names exist.
func TestComposeFits(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Build       struct{ Context, Dockerfile string }
			Command     []string
			Environment map[string]string
			Ports       []string
			Volumes     []string
			Secrets     []string
			DependsOn   map[string]any `yaml:"depends_on"`
		}
		Secrets, Volumes map[string]any
	}
	readYAML(t, deploy+"compose.yaml", &file)
	help, err := exec.CommandContext(t.Context(), binary, "serve", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	nodes, published := 0, map[string]bool{}
	for name, s := range file.Services {
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if !strings.HasPrefix(source, ".") {
				if _, found := file.Volumes[source]; !found {
					t.Errorf("%s: no volume %s", name, source)
				}
			} else if info, err := os.Stat(deploy + source); err != nil || info.IsDir() {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, secret := range s.Secrets {
			if _, found := file.Secrets[secret]; !found {
				t.Errorf("%s: no secret %s", name, secret)
			}
		}
		for other := range s.DependsOn {
			if _, found := file.Services[other]; !found {
				t.Errorf("%s depends on %s", name, other)
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") || published[p] {
				t.Errorf("%s: port %s must be for this machine alone, and for one service", name, p)
			}
			published[p] = true
		}
		if s.Build.Context == "" {
			continue
		}
		nodes++
		if _, err := os.Stat(deploy + s.Build.Context + "/" + s.Build.Dockerfile); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for env := range s.Environment {
			flag := "--" + strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(env, "WEIR_")), "_", "-")
			if !strings.Contains(string(help), " "+flag+" ") {
				t.Errorf("%s: weir serve has no %s", name, flag)
			}
		}
		for i, of := range []string{"WEIR_HTTP", "WEIR_ADMIN"} {
			port := s.Environment[of][strings.LastIndex(s.Environment[of], ":"):]
			if !strings.HasSuffix(s.Ports[i], port) {
				t.Errorf("%s: %s listens on %s, and %s is published", name, of, port, s.Ports[i])
			}
		}
	}
	if nodes != 3 {
		t.Errorf("%d nodes", nodes)
	}
	// Prometheus scrapes each node's admin port, at the address at which a browser on the host reaches it.
	targets := regexp.MustCompile(`"(weir-\d):8082"\], labels: \{instance: "(127\.0\.0\.1:\d+)"`).FindAllStringSubmatch(read(t, deploy+"prometheus/prometheus.yaml"), -1)
	for _, m := range targets {
		if !slices.Contains(file.Services[m[1]].Ports, m[2]+":8082") {
			t.Errorf("Prometheus calls the admin port of %s %s, and it is at %v", m[1], m[2], file.Services[m[1]].Ports)
		}
	}
	if len(targets) != nodes {
		t.Errorf("Prometheus scrapes %d nodes of %d", len(targets), nodes)
	}
	for secret := range file.Secrets {
		if !strings.Contains(read(t, deploy+"prometheus/prometheus.yaml"), "credentials_file: /run/secrets/"+secret+"}") {
			t.Errorf("Prometheus doesn't read the secret %s", secret)
		}
	}
	dockerfile := read(t, deploy+"Dockerfile")
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../go.mod"))[1]
	for _, want := range []string{"FROM golang:" + version + " ", "\nUSER 65532", "\nEXPOSE 8080 8081 8082\n", "./server/cmd/weir", "\nENV WEIR_DATA=/var/lib/weir\n",
		"ln -s /usr/local/bin/weir /out/bin/ratelimit\n", "\nCOPY --from=build /out/weir /usr/local/bin/weir\n", "\nCOPY --from=build /out/bin/ /bin/\n"} {
		if !strings.Contains(dockerfile, want) {
			t.Errorf("the Dockerfile lacks %q", want)
		}
	}
}

// queries returns all PromQL expressions of the dashboard by panel, with Grafana's variables filled in.
func queries(t *testing.T) map[string]string {
	t.Helper()
	var d struct {
		Templating struct {
			List []struct {
				Name  string
				Query any
			}
		}
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, deploy+"grafana/weir.json")), &d); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	fill := strings.NewReplacer("$job", ".*", "$node", ".*", "$rule", ".*", "$__rate_interval", "1m")
	ids := map[int]string{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] != "" || p.Title == "" {
			t.Errorf("panels %q and %q have the id %d", ids[p.ID], p.Title, p.ID)
		}
		ids[p.ID] = p.Title
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if at[0] >= 24 || taken[at] != "" {
					t.Errorf("panel %q lies over %q, or outside, at %v", p.Title, taken[at], at)
				}
				taken[at] = p.Title
			}
		}
		for i, q := range p.Targets {
			expr := fill.Replace(q.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s: the test doesn't know a variable of %s", p.Title, expr)
			}
			all[fmt.Sprintf("panel %q, query %d", p.Title, i+1)] = expr
		}
	}
	values := regexp.MustCompile(`^label_values\((\w+)(?:\{job=~"\$job"\})?, (\w+)\)$`)
	for _, v := range d.Templating.List {
		if q, _ := v.Query.(map[string]any); q != nil {
			m := values.FindStringSubmatch(fmt.Sprint(q["query"]))
			if m == nil {
				t.Fatalf("variable %s: %v", v.Name, q)
			}
			all["variable "+v.Name] = fmt.Sprintf(`count by (%s) (%s)`, m[2], m[1])
		}
	}
	if len(all) < 30 {
		t.Errorf("%d queries", len(all))
	}
	return all
}

// The docs, the compose file or Prometheus' configuration name every file below deploy.
func TestDeployFilesAreUsed(t *testing.T) {
	var text strings.Builder
	for _, file := range []string{deploy + "compose.yaml", "../docs/guides/monitoring.md", deploy + "prometheus/prometheus.yaml"} {
		text.WriteString(read(t, file))
	}
	err := filepath.WalkDir(deploy, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if name, _ := strings.CutSuffix(e.Name(), ".dockerignore"); !strings.Contains(text.String(), name) {
			return errors.New(path + " is named neither by the docs nor by the compose file")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
