package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weirhq/weir/internal/jsonerror"
	adminapi "github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// admin is the admin port of a node, and where the token for it is.
type admin struct {
	addr   string
	secret tokenFlag
	tls    tlsFlags
	wait   time.Duration // for a node that can't read or write its rules
}

func (n *admin) register(cmd *cobra.Command) {
	addressFlag(cmd, &n.addr, "admin", "127.0.0.1:8082", "admin port")
	n.secret.register(cmd.Flags(), "admin", "admin port")
	n.tls.register(cmd.Flags())
}

// waitBetween is the time between two attempts at a node that can't read or write its rules.
const waitBetween = 500 * time.Millisecond

// call asks the node, again and again for as long as wait says while it can't read or write its rules. Any answer but 2xx is an error that says what to do, with a refusal in it.
func (n *admin) call(cmd *cobra.Command, method, path string, body any, header http.Header) (*answer, error) {
	url, h, place, err := n.prepare(path, header)
	if err != nil {
		return nil, err
	}
	stopped := &exit{exitUnavailable, errors.New("stopped while it waited for the node's rules: nothing was changed as far as is known")}
	began, told := time.Now(), time.Time{}
	for {
		a, err := call(cmd.Context(), &n.tls, "admin", method, url, body, h)
		if err != nil && !told.IsZero() && cmd.Context().Err() != nil {
			return nil, stopped
		}
		if err != nil {
			return nil, err
		}
		if a.status >= 200 && a.status < 300 {
			return a, nil
		}
		err = n.refused(a, url, place)
		r, unavailable := refused(err, http.StatusServiceUnavailable)
		left := n.wait - time.Since(began)
		if !unavailable || r.Code != jsonerror.RulesUnavailable && r.Code != jsonerror.Busy {
			return nil, err
		}
		if left <= 0 {
			if n.wait == 0 && cmd.Flags().Lookup("wait") != nil {
				err = &exit{r.exitCode(), fmt.Errorf("%w; to keep trying, repeat it with --wait 5m", r)}
			}
			return nil, err
		}
		if time.Since(told) >= tellEvery {
			told = time.Now()
			fmt.Fprintf(cmd.ErrOrStderr(), "%s; trying again for %s, unless Ctrl-C ends it\n", r.Message, left.Round(time.Second))
		}
		if pause(cmd.Context(), min(left, waitBetween)) != nil {
			return nil, stopped
		}
	}
}

// tellEvery is the time between two lines that say what a command waits for.
const tellEvery = 5 * time.Second

// prepare is where to ask, and with which headers; and the place where the token was found that is among them, or "".
func (n *admin) prepare(path string, header http.Header) (url string, h http.Header, place string, err error) {
	token, place, err := n.secret.read()
	if err != nil {
		return "", nil, "", &exit{exitUsage, err}
	}
	if h = header.Clone(); h == nil {
		h = http.Header{}
	}
	if token == "" {
		place = ""
	} else {
		h.Set("Authorization", "Bearer "+token)
	}
	base, err := n.tls.address("admin", n.addr)
	return base + path, h, place, err
}

// refused is the error of an answer that wasn't wanted.
func (n *admin) refused(a *answer, url, place string) error {
	r := &refusal{answer: a, url: url, asked: &n.secret, token: place}
	var e struct{ Error fault }
	if json.Unmarshal(a.body, &e) == nil {
		r.fault = e.Error
	}
	return &exit{r.exitCode(), r}
}

func (a *answer) decode(into any) error {
	if err := json.Unmarshal(a.body, into); err != nil {
		return &exit{exitUnavailable, fmt.Errorf("the node's answer isn't understood: is it a Weir node, of this version? %w", err)}
	}
	return nil
}

// version is that of the rules that the answer is about.
func (a *answer) version() (int64, error) {
	n, err := strconv.ParseInt(strings.Trim(strings.TrimPrefix(a.header.Get("ETag"), "W/"), `"`), 10, 64)
	switch {
	case err != nil:
		return 0, &exit{exitUnavailable, errors.New("the answer has no version of the rules: is it a Weir node?")}
	case n < 1:
		return 0, &exit{exitUnavailable, errors.New("the node hasn't reached its rule store yet, and can't change rules: try again when it has")}
	}
	return n, nil
}

func ifMatch(version int64) http.Header {
	return http.Header{"If-Match": {`"` + strconv.FormatInt(version, 10) + `"`}}
}

// fault is the error of an answer that isn't the one that was wanted.
type fault struct {
	jsonerror.Error
	Details adminapi.Rejection `json:"details"`
}

// refusal is such an answer.
type refusal struct {
	*answer
	fault
	url   string
	token string // where the token was found that was sent, or ""
	asked *tokenFlag
}

// Error says what to do.
func (r *refusal) Error() string {
	switch {
	case r.status == http.StatusUnauthorized && r.token == "":
		return r.asked.wanted()
	case r.status == http.StatusUnauthorized:
		return "the node doesn't know the token of " + r.token + ": is it this node's, and complete?"
	case r.status == http.StatusForbidden && r.Code == jsonerror.Forbidden:
		return cmp.Or(r.Message, "the token may only read") + ": use one with the role operate"
	case r.status == http.StatusTooManyRequests:
		wait := "a minute"
		if s := r.header.Get("Retry-After"); s != "" {
			wait = s + " s"
		}
		return "the node has seen too many bad tokens from here: correct the token, and try again in " + wait
	case r.status == http.StatusConflict && r.Message != "":
		return r.Message
	case r.status == http.StatusPreconditionFailed:
		return cmp.Or(r.Message, "someone was faster: look at what has changed, and apply yours to that")
	case r.status == http.StatusUnprocessableEntity && len(r.Details.Problems) > 0:
		return count(len(r.Details.Problems), "problem") + ": nothing was changed"
	case r.status == http.StatusUnprocessableEntity && len(r.Details.Warnings) > 0:
		return count(len(r.Details.Warnings), "warning") + ": nothing was changed; --dry-run shows the difference, and --force makes the change"
	case r.status == http.StatusUnprocessableEntity && r.Message != "":
		return r.Message
	case r.isCheckPort():
		return "--admin: " + r.url + " is on a node's check port: give its admin port, which is 127.0.0.1:8082 unless the node was told another"
	case r.status == http.StatusNotFound && r.Message != "":
		return fmt.Sprintf("%s (%s answers 404)", r.Message, r.url)
	}
	return unexpected(r.url, r.status, r.body).Error()
}

// isCheckPort: it is the check API that answers, which has nothing at the paths of the admin port.
func (r *refusal) isCheckPort() bool {
	return r.status == http.StatusNotFound && r.Message == checkapi.NothingHere
}

func (r *refusal) exitCode() int {
	if r.isCheckPort() {
		return exitUsage
	}
	switch r.status {
	case http.StatusConflict, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return exitRefused
	case http.StatusNotFound:
		if r.Code != "" { // a version or a rule that isn't there; otherwise it isn't a node
			return exitRefused
		}
	}
	return noDecision(r.status)
}

// refused returns the refusal in an error, if it has this status.
func refused(err error, status int) (*refusal, bool) {
	var r *refusal
	return r, errors.As(err, &r) && r.status == status
}
