package otlp

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is the section `otlp:` of weir.yaml. OpenTelemetry's standard variables override it. Headers contain secrets,
// so they can be set only in the environment.
type Config struct {
	// Endpoint is the collector's URL, such as http://127.0.0.1:4318. If it is "", and no variable names an endpoint,
	// nothing is sent.
	Endpoint string `yaml:"endpoint"`
	// Protocol is grpc or http/protobuf. "" means http/protobuf.
	Protocol string `yaml:"protocol"`
	// Metrics and Traces turn metrics and traces on or off. Nil means on.
	Metrics *bool `yaml:"metrics"`
	Traces  *bool `yaml:"traces"`
	// Interval is the time between two reports of the metrics. Zero means one minute.
	Interval time.Duration `yaml:"interval"`
	// Sample is the share of requests to trace, among those that arrive without a trace of their own. Nil means that
	// all are traced, up to tracesPerSecond.
	Sample *float64 `yaml:"sample"`
}

const (
	overGRPC = "grpc"
	overHTTP = "http/protobuf"
)

// signal is a kind of telemetry, metrics or traces. It is spelled as in the names of variables.
type signal string

const (
	metrics signal = "METRICS"
	traces  signal = "TRACES"
)

// variables returns the names of the variables for a setting of an exporter: first the variable for this signal, which
// takes precedence, and then the variable for both signals.
func (s signal) variables(setting string) []string {
	return []string{"OTEL_EXPORTER_OTLP_" + string(s) + "_" + setting, "OTEL_EXPORTER_OTLP_" + setting}
}

// variable returns the value of a setting of an exporter, and the name of the variable that sets it.
func (s signal) variable(setting string) (name, value string) {
	for _, name = range s.variables(setting) {
		if value = strings.TrimSpace(os.Getenv(name)); value != "" {
			break
		}
	}
	return name, value
}

func (c *Config) sends(s signal) bool {
	if off, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED")); off {
		return false
	}
	wanted := c.Metrics
	if s == traces {
		wanted = c.Traces
	}
	_, endpoint := s.variable("ENDPOINT")
	switch os.Getenv("OTEL_" + string(s) + "_EXPORTER") {
	case "none":
		return false
	case "otlp":
		return true
	}
	return (wanted == nil || *wanted) && (endpoint != "" || c.Endpoint != "")
}

// Sending says in words what is sent, where and how. It returns "" if nothing is sent.
func (c *Config) Sending() string {
	var all []string
	for _, s := range []signal{metrics, traces} {
		if !c.sends(s) {
			continue
		}
		_, endpoint := s.variable("ENDPOINT")
		host := "localhost"
		if u, err := url.Parse(cmp.Or(endpoint, c.Endpoint)); err == nil && u.Host != "" {
			host = u.Host // leave out the path, which may contain a key
		}
		all = append(all, fmt.Sprintf("%s to %s by %s", strings.ToLower(string(s)), host, c.protocol(s)))
	}
	return strings.Join(all, ", ")
}

func (c *Config) protocol(s signal) string {
	_, value := s.variable("PROTOCOL")
	return cmp.Or(value, c.Protocol, overHTTP)
}

// checks has a function for each setting of exporters that validates it. Exporters read the variables for one signal
// and for both signals, so both must be valid.
var checks = []struct {
	setting string
	valid   func(string) error
}{
	{"ENDPOINT", checkEndpoint}, {"PROTOCOL", checkProtocol}, {"HEADERS", checkHeaders}, {"TIMEOUT", checkMilliseconds}, {"INSECURE", checkBool},
	{"CERTIFICATE", checkFile}, {"CLIENT_CERTIFICATE", checkFile}, {"CLIENT_KEY", checkFile},
}

// Validate checks the settings of the signals that are sent. Its error shows neither headers nor the users and
// passwords in URLs.
func (c *Config) Validate() error {
	if err := c.validateFile(); err != nil {
		return fmt.Errorf("otlp: %w", err)
	}
	for _, s := range []signal{metrics, traces} {
		if err := check("OTEL_"+string(s)+"_EXPORTER", oneOf("otlp", "none")); err != nil {
			return err
		}
		if !c.sends(s) {
			continue
		}
		for _, c := range checks {
			for _, name := range s.variables(c.setting) {
				if err := check(name, c.valid); err != nil {
					return err
				}
			}
		}
	}
	return cmp.Or(check("OTEL_METRIC_EXPORT_INTERVAL", checkMilliseconds), check("OTEL_TRACES_SAMPLER", checkSampler))
}

func check(name string, valid func(string) error) error {
	value := strings.TrimSpace(os.Getenv(name))
	if value == "" {
		return nil
	}
	if err := valid(value); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (c *Config) validateFile() error {
	for _, setting := range []struct {
		name, value string
		valid       func(string) error
	}{{"endpoint", c.Endpoint, checkEndpoint}, {"protocol", c.Protocol, checkProtocol}} {
		if setting.value == "" {
			continue
		}
		if err := setting.valid(setting.value); err != nil {
			return fmt.Errorf("%s: %w", setting.name, err)
		}
	}
	switch {
	case c.Interval != 0 && c.Interval < time.Second:
		return fmt.Errorf("interval: must be at least 1s, such as 60s, got %s", c.Interval)
	case c.Sample != nil && !(*c.Sample >= 0 && *c.Sample <= 1):
		return fmt.Errorf("sample: must be a share from 0 to 1, such as 0.01 for one in a hundred, got %v", *c.Sample)
	}
	return nil
}

// oneOf returns a function that accepts only the given words.
func oneOf(words ...string) func(string) error {
	return func(text string) error {
		if !slices.Contains(words, text) {
			return fmt.Errorf("must be %s, got %q", strings.Join(words, " or "), text)
		}
		return nil
	}
}

var checkProtocol = oneOf(overGRPC, overHTTP)

func checkEndpoint(text string) error {
	const want = "must be a URL such as http://127.0.0.1:4318, or http://127.0.0.1:4317 for grpc"
	u, err := url.Parse(text)
	switch {
	case err == nil && u.User != nil:
		return errors.New("must not hold a user or password: they wouldn't be sent; put what the collector asks for into OTEL_EXPORTER_OTLP_HEADERS")
	case err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		return nil
	case !strings.Contains(text, "://") && !strings.Contains(text, "@") && strings.Contains(text, ":"):
		return fmt.Errorf("%s: did you mean http://%s?", want, text)
	}
	return errors.New(want)
}

// checkHeaders validates the headers. Its error shows neither names nor values, because a secret may have been written
// in the place of a name.
func checkHeaders(text string) error {
	for i, header := range strings.Split(text, ",") {
		name, value, ok := strings.Cut(header, "=")
		_, err := url.PathUnescape(value)
		if name = strings.TrimSpace(name); !ok || name == "" || err != nil || strings.Trim(name, letters) != "" {
			return fmt.Errorf("must be name=value,name=value with values as in URLs (%%20 for a blank), and number %d isn't", i+1)
		}
	}
	return nil
}

// letters are the characters that the name of a header may contain.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.!#$%&'*+^`|~"

func checkMilliseconds(text string) error {
	if n, err := strconv.Atoi(text); err != nil || n < 1 {
		return fmt.Errorf("must be a whole number of milliseconds, such as 10000, got %q", text)
	}
	return nil
}

func checkBool(text string) error { return oneOf("true", "false")(strings.ToLower(text)) }

func checkFile(name string) error {
	_, err := os.ReadFile(name)
	return err
}

var checkSamplerName = oneOf("always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio")

func checkSampler(text string) error {
	text = strings.ToLower(text)
	if err := checkSamplerName(text); err != nil {
		return err
	}
	arg := strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG"))
	if share, err := strconv.ParseFloat(arg, 64); strings.HasSuffix(text, "traceidratio") && arg != "" && (err != nil || !(share >= 0 && share <= 1)) {
		return fmt.Errorf("OTEL_TRACES_SAMPLER_ARG must be a share from 0 to 1, such as 0.01 for one in a hundred, got %q", arg)
	}
	return nil
}
