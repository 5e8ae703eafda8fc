package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/checkapi"
)

// address is a node's address as flags have it, host:port or a URL, made a URL.
func address(s string) string {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	return strings.TrimRight(s, "/")
}

// addressFlag is a flag that says where a port of a running node is. It has the
// name and the environment variable of the flag with which the node was told.
func addressFlag(cmd *cobra.Command, value *string, name, otherwise, what string) {
	env := "WEIR_" + strings.ToUpper(name)
	if v := os.Getenv(env); v != "" {
		otherwise = v
	}
	cmd.Flags().StringVar(value, name, otherwise, what+" of the node, host:port or URL ("+env+")")
}

var client = &http.Client{Timeout: 10 * time.Second}

// call sends a request to a node and reads the answer, whatever its status.
func call(cmd *cobra.Command, method, url string, body any) (status int, answer []byte, err error) {
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(cmd.Context(), method, url, payload)
	if err != nil {
		return 0, nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("no node answers: %w", err)
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(res.Body, 16<<20))
	return res.StatusCode, answer, err
}

// unexpected is the error of an answer that is neither wanted nor a refusal.
func unexpected(url string, status int, answer []byte) error {
	var e struct {
		Error struct{ Message string }
	}
	if json.Unmarshal(answer, &e) == nil && e.Error.Message != "" {
		return fmt.Errorf("%s answers %d: %s", url, status, e.Error.Message)
	}
	return fmt.Errorf("%s answers %d: is it a Weir node?", url, status)
}

func printJSON(cmd *cobra.Command, v any) error {
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// requestFlags describe a request on the command line.
type requestFlags struct {
	checkapi.CheckRequest
	cost            int64
	user, org, tier string
	attrs           []string
}

func (r *requestFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.Key, "key", "", "API key")
	f.StringVar(&r.Method, "method", "GET", "HTTP method")
	f.StringVar(&r.Path, "path", "", "path")
	f.StringVar(&r.IP, "ip", "", "address of the client")
	f.StringVar(&r.user, "user", "", "user")
	f.StringVar(&r.org, "org", "", "organisation")
	f.StringVar(&r.tier, "tier", "", "tier")
	f.StringArrayVar(&r.attrs, "attr", nil, "another attribute, NAME=VALUE; repeatable")
	f.Int64Var(&r.cost, "cost", 1, "tokens; 0 peeks")
}

// wire returns the request as the check API has it.
func (r *requestFlags) wire() (*checkapi.CheckRequest, error) {
	r.Cost = &r.cost
	r.Attributes = map[string]string{}
	for name, v := range map[string]string{"user": r.user, "org": r.org, "tier": r.tier} {
		if v != "" {
			r.Attributes[name] = v
		}
	}
	for _, a := range r.attrs {
		name, v, ok := strings.Cut(a, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--attr: must be NAME=VALUE, got %q", a)
		}
		r.Attributes[name] = v
	}
	_, err := r.decode()
	return &r.CheckRequest, err
}

// decode reads the request as a node would.
func (r *requestFlags) decode() (weir.Request, error) {
	body, err := json.Marshal(r.CheckRequest)
	if err != nil {
		return weir.Request{}, err
	}
	return checkapi.DecodeCheck(body)
}
