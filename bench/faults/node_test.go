package faults

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// ruleNames are the rules of a node: one for each failure mode, and one whose limit shows whether counting is exact.
// Each applies to an endpoint with its name.
var ruleNames = []string{"allow", "refuse", "local", "tight"}

const (
	tight   = 5             // limit of the rules local and tight
	plenty  = 1_000_000_000 // limit of the others
	forever = 366 * 24 * time.Hour
)

func rules() (*weir.RuleSet, error) {
	var doc weir.Rules
	for _, r := range []struct {
		count int64
		mode  counter.FailureMode
	}{{plenty, weir.FailAllow}, {plenty, weir.FailRefuse}, {tight, weir.FailLocal}, {tight, weir.FailAllow}} {
		name := ruleNames[len(doc.Rules)]
		doc.Rules = append(doc.Rules, weir.Rule{
			ID:             name,
			Match:          weir.Match{Endpoint: "/" + name},
			Limits:         []weir.Limit{{Count: r.count, Window: forever}},
			Algorithm:      weir.FixedWindow,
			OnStoreFailure: r.mode,
		})
	}
	return weir.Compile(doc)
}

// node is a Weir in this process, where its goroutines can be counted, with the check API on a port of its own.
type node struct {
	addr        string
	store       *redisstore.Store
	http        *http.Server
	connections atomic.Int64 // accepted so far
	ended       chan error
}

func startNode(url string, budget time.Duration, log *slog.Logger) (*node, error) {
	set, err := rules()
	if err != nil {
		return nil, err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	store, err := redisstore.New(redisstore.Options{URL: url, Timeout: budget, Logger: log})
	if err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	limiter := weir.NewLimiter(store, set, weir.Options{Local: store.Share(memstore.New(memstore.Options{}))})
	n := &node{addr: lis.Addr().String(), store: store, ended: make(chan error, 1)}
	n.http = &http.Server{Handler: checkapi.New(limiter, nil, checkapi.Options{}), ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			n.connections.Add(1)
		}
	}}
	go func() { n.ended <- n.http.Serve(lis) }()
	return n, nil
}

func (n *node) close() error {
	err := n.http.Close()
	if ended := <-n.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	n.store.Close()
	return err
}
