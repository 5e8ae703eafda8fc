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

// Config is `otlp:` in weir.yaml. OpenTelemetry's standard variables take precedence. Headers hold secrets, so only the
// environment can set them.
type Config struct {
	// Endpoint is the collector's URL, such as http://127.0.0.1:4318. If it is "", nothing is sent unless a variable names one.
	Endpoint string `yaml:"endpoint"`
	// Protocol is grpc or http/protobuf. "" means http/protobuf.
	Protocol string `yaml:"protocol"`
	// Metrics and Traces turn each kind on or off. Nil means on.
	Metrics *bool `yaml:"metrics"`
	Traces  *bool `yaml:"traces"`
	// Interval is the time between two reports of the metrics. Zero means a minute.
	Interval time.Duration `yaml:"interval"`
	// Sample is the share of requests to trace among those that arrive without a trace of their own. Nil means all, up to
	// tracesPerSecond.
	Sample *float64 `yaml:"sample"`
}

const (
	overGRPC = "grpc"
	overHTTP = "http/protobuf"
)

// signal is a kind of telemetry, under its name in variables.
type signal string

const (
	metrics signal = "METRICS"
	traces  signal = "TRACES"
)

// variable returns an exporter's setting, and the name of the variable that sets it. A signal's own variable comes before the one
// for both signals.
func (s signal) variable(setting string) (name, value string) {
	for _, name = range []string{"OTEL_EXPORTER_OTLP_" + string(s) + "_" + setting, "OTEL_EXPORTER_OTLP_" + setting} {
		if value = strings.TrimSpace(os.Getenv(name)); value != "" {
			break
		}
	}
	return name, value
}

// sends reports whether a signal is sent.
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

// Sending describes what is sent, where and how. It is "" if nothing is sent.
func (c *Config) Sending() string {
	var all []string
	for _, s := range []signal{metrics, traces} {
		if !c.sends(s) {
			continue
		}
		_, endpoint := s.variable("ENDPOINT")
		host := "localhost"
		if u, err := url.Parse(cmp.Or(endpoint, c.Endpoint)); err == nil && u.Host != "" {
			host = u.Host // a path may hold a key
		}
		all = append(all, fmt.Sprintf("%s to %s by %s", strings.ToLower(string(s)), host, c.protocol(s)))
	}
	return strings.Join(all, ", ")
}

func (c *Config) protocol(s signal) string {
	if _, value := s.variable("PROTOCOL"); value != "" {
		return value
	}
	if c.Protocol != "" {
		return c.Protocol
	}
	return overHTTP
}

// Validate reports what is wrong with the settings of the signals that are sent. Its errors show neither headers nor the users and
// passwords of URLs.
func (c *Config) Validate() error {
	if err := c.validateFile(); err != nil {
		return fmt.Errorf("otlp: %w", err)
	}
	for _, s := range []signal{metrics, traces} {
		if name := "OTEL_" + string(s) + "_EXPORTER"; !slices.Contains([]string{"", "otlp", "none"}, os.Getenv(name)) {
			return fmt.Errorf("%s: must be otlp or none, got %q", name, os.Getenv(name))
		}
		if !c.sends(s) {
			continue
		}
		for _, setting := range []struct {
			name  string
			check func(string) error
		}{
			{"ENDPOINT", checkEndpoint}, {"PROTOCOL", checkProtocol}, {"HEADERS", checkHeaders}, {"TIMEOUT", checkMilliseconds}, {"INSECURE", checkBool},
			{"CERTIFICATE", checkFile}, {"CLIENT_CERTIFICATE", checkFile}, {"CLIENT_KEY", checkFile},
		} {
			if err := checkVariables(s, setting.name, setting.check); err != nil {
				return err
			}
		}
	}
	for name, check := range map[string]func(string) error{"OTEL_METRIC_EXPORT_INTERVAL": checkMilliseconds, "OTEL_TRACES_SAMPLER": checkSampler} {
		if value := strings.TrimSpace(os.Getenv(name)); value != "" {
			if err := check(value); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func (c *Config) validateFile() error {
	if c.Endpoint != "" {
		if err := checkEndpoint(c.Endpoint); err != nil {
			return fmt.Errorf("endpoint: %w", err)
		}
	}
	if c.Protocol != "" {
		if err := checkProtocol(c.Protocol); err != nil {
			return fmt.Errorf("protocol: %w", err)
		}
	}
	if c.Interval != 0 && c.Interval < time.Second {
		return fmt.Errorf("interval: must be at least 1s, such as 60s, got %s", c.Interval)
	}
	if c.Sample != nil && !(*c.Sample >= 0 && *c.Sample <= 1) {
		return fmt.Errorf("sample: must be a share from 0 to 1, such as 0.01 for one in a hundred, got %v", *c.Sample)
	}
	return nil
}

// checkVariables checks both variables of a setting. The exporters read both, so even one that isn't in force must be valid.
func checkVariables(s signal, setting string, check func(string) error) error {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_" + string(s) + "_" + setting, "OTEL_EXPORTER_OTLP_" + setting} {
		if value := strings.TrimSpace(os.Getenv(name)); value != "" {
			if err := check(value); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

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

func checkProtocol(text string) error {
	if text != overGRPC && text != overHTTP {
		return fmt.Errorf("must be %s or %s, got %q", overGRPC, overHTTP, text)
	}
	return nil
}

// checkHeaders reports neither names nor values: the mistake may be a secret in the place of a name.
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

// letters are the characters that a header's name may have.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.!#$%&'*+^`|~"

func checkMilliseconds(text string) error {
	if n, err := strconv.Atoi(text); err != nil || n < 1 {
		return fmt.Errorf("must be a whole number of milliseconds, such as 10000, got %q", text)
	}
	return nil
}

func checkBool(text string) error {
	if !slices.Contains([]string{"true", "false"}, strings.ToLower(text)) {
		return fmt.Errorf("must be true or false, got %q", text)
	}
	return nil
}

func checkFile(name string) error {
	_, err := os.ReadFile(name)
	return err
}

var samplers = []string{"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}

func checkSampler(text string) error {
	if text = strings.ToLower(text); !slices.Contains(samplers, text) {
		return fmt.Errorf("must be one of %s, got %q", strings.Join(samplers, ", "), text)
	}
	arg := strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG"))
	if share, err := strconv.ParseFloat(arg, 64); strings.HasSuffix(text, "traceidratio") && arg != "" && (err != nil || !(share >= 0 && share <= 1)) {
		return fmt.Errorf("OTEL_TRACES_SAMPLER_ARG must be a share from 0 to 1, such as 0.01 for one in a hundred, got %q", arg)
	}
	return nil
}
