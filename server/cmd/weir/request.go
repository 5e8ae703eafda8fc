package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// requestFlags are the flags that describe a request.
type requestFlags struct {
	checkapi.CheckRequest
	named          map[string]*string // attributes that have their own flags
	attrs, amounts []string           // NAME=VALUE each
	unverified     bool
}

// register adds the flags for the parts of a request that counters and rules depend on.
func (r *requestFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.Method, "method", "GET", "HTTP method")
	f.StringVar(&r.Path, "path", "", "path")
	f.StringVar(&r.IP, "ip", "", "the client's IP address")
	r.named = map[string]*string{"user": f.String("user", "", "user"), "org": f.String("org", "", "organisation"), "tier": f.String("tier", "", "tier")}
	f.StringArrayVar(&r.attrs, "attr", nil, "another attribute, NAME=VALUE; repeatable")
}

// registerCharge adds the flags for the key, and for what the request takes.
func (r *requestFlags) registerCharge(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.Key, "key", "", "API key")
	r.Cost = f.Int64("cost", 1, "tokens; 0 peeks")
	f.StringArrayVar(&r.amounts, "amount", nil, "an amount that the request takes, NAME=NUMBER, such as tokens=1500; repeatable")
}

func (r *requestFlags) registerUnverified(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.unverified, "unverified", false, "treat the key and the tier as unverified, as the gateway does for a stranger")
}

// query returns the query parameter for --unverified.
func (r *requestFlags) query() string {
	if r.unverified {
		return "?unverified=true"
	}
	return ""
}

// registerReserve adds the flags that only a check has.
func (r *requestFlags) registerReserve(cmd *cobra.Command) {
	cmd.Flags().DurationVar((*time.Duration)(&r.Reserve), "reserve", 0, "reserve the amounts, which are an estimate to settle later, for at least this long, such as 2m")
	cmd.Flags().StringVar(&r.ID, "id", "", "id of the request: within a minute, requests with one id are charged once")
}

// check returns the request that a command's arguments and flags describe.
func (r *requestFlags) check(cmd *cobra.Command, args []string) (*checkapi.CheckRequest, error) {
	var err error
	f := cmd.Flags()
	switch {
	case len(args) == 0:
	case f.Changed("key"):
		return nil, errors.New("--key: the key is there already, as an argument: give it once")
	case f.Lookup("rules") != nil && isRuleFile(args[0]):
		return nil, fmt.Errorf("%s takes a key: did you mean --rules %s?", cmd.CommandPath(), args[0])
	default:
		r.Key, err = keyOf(cmd, args[0])
	}
	switch {
	case err != nil:
		return nil, err
	case f.Changed("id") && r.ID == "":
		return nil, errors.New("--id: must not be empty")
	case f.Changed("reserve") && r.Reserve <= 0:
		return nil, errors.New("--reserve: must be a time such as 2m")
	}
	return r.wire()
}

// wire returns the request in the form of the check API.
func (r *requestFlags) wire() (*checkapi.CheckRequest, error) {
	r.Attributes, r.Amounts = map[string]string{}, map[string]counter.Amount{}
	for name, v := range r.named {
		if *v != "" {
			r.Attributes[name] = *v
		}
	}
	for _, text := range r.amounts {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("--amount: must be NAME=NUMBER, such as tokens=1500, got %q", text)
		}
		n, err := counter.ParseAmount(value)
		if err != nil {
			return nil, fmt.Errorf("--amount %s: %w", name, err)
		}
		if _, twice := r.Amounts[name]; twice {
			return nil, fmt.Errorf("--amount %s: is given twice", name)
		}
		r.Amounts[name] = n
	}
	for _, text := range r.attrs {
		name, v, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--attr: must be NAME=VALUE, got %q", text)
		}
		r.Attributes[name] = v
	}
	_, err := r.decode()
	return &r.CheckRequest, err
}

// decode decodes the request in the same way as a node.
func (r *requestFlags) decode() (weir.Request, error) {
	body, err := json.Marshal(r.CheckRequest)
	if err != nil {
		return weir.Request{}, err
	}
	return checkapi.DecodeCheck(body)
}
