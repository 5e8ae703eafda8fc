package envoy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirhq/weir/internal/node/watch"
	"github.com/weirhq/weir/rulefile"
)

// XDS describes an xDS server that sends configurations. The server must support aggregated discovery (state of the
// world), as Envoy Gateway and Envoy AI Gateway do.
type XDS struct {
	// Server is the server's host and port, such as envoy-gateway:18001.
	Server string
	// Node is this node's name. The server chooses the configuration by it. The default is DefaultNode. NodeMetadata is
	// sent together with the name.
	Node         string
	NodeMetadata map[string]string `yaml:"-"`
	// Headers are sent with each stream. They may contain secrets, so Weir never shows them.
	Headers map[string]string `yaml:"-"`
	// TLS names the files for TLS. If nil, the connection isn't encrypted.
	TLS *TLSFiles
	// Retry is the pause before the second attempt to connect. The pause doubles with each attempt, up to MaxRetry, and
	// is shortened at random by up to a half. If zero, they are half a second and 30 seconds. Only tests set them.
	Retry, MaxRetry time.Duration `yaml:"-"`
}

// TLSFiles names the PEM files of a TLS client. They are read again for each connection, so the files may be replaced.
type TLSFiles struct {
	// CA is the authority that signs the server's certificate. By default, the system's authorities apply.
	CA string
	// Cert and Key are the client's certificate and key, if the server requires one.
	Cert, Key string
	// ServerName is the name in the server's certificate. By default, it is the host.
	ServerName string
}

// DefaultNode is the default name of a node, as in envoyproxy/ratelimit.
const DefaultNode = "default"

// Bounds on what an xDS server can make a node do.
const (
	maxConfig    = 4 << 20 // bytes of a configuration; it is the default of gRPC and of envoyproxy/ratelimit
	maxResources = 10_000
	maxReason    = 8 << 10 // bytes of an error that is reported to the server

	configWindow = 1 << 20 // bytes in flight
	connectTime  = 5 * time.Second

	// leastPace is the shortest pause between two configurations. Servers that use go-control-plane immediately send a
	// rejected configuration again, so the pause doubles each time, up to mostPace.
	leastPace, mostPace = 100 * time.Millisecond, 2 * time.Second

	// TCP probes detect within a minute that a server has vanished. Pings of gRPC detect that a server hangs. They are
	// rare, because gRPC servers treat pings that come more often than every five minutes as an attack.
	probeAfter, probeEvery, probes = 30 * time.Second, 10 * time.Second, 3
	pingAfter, pingTimeout         = 6 * time.Minute, 20 * time.Second
)

// Validate returns an error if a setting is invalid.
func (x *XDS) Validate() error {
	host, _, err := net.SplitHostPort(strings.TrimPrefix(x.Server, "dns:///"))
	switch {
	case x.Server == "":
		return errors.New("server: is missing: write the xDS server's host and port, such as envoy-gateway:18001")
	case err != nil || host == "" || strings.Contains(host, "/"):
		return fmt.Errorf("server: must be a host and a port, such as envoy-gateway:18001, got %q", clip(x.Server))
	case x.TLS != nil && (x.TLS.Cert == "") != (x.TLS.Key == ""):
		return errors.New("tls: cert and key go together")
	}
	return nil
}

func (t *TLSFiles) config() (*tls.Config, error) {
	c := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		roots, err := watch.Authorities(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls: ca: %w", err)
		}
		c.RootCAs = roots
	}
	if t.Cert != "" {
		pair, err := watch.KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Feed follows an xDS server, and applies the configurations that the server sends. If one is invalid, the
// configuration in force stays.
type Feed struct {
	XDS
	service *Service
	node    *core.Node
	again   watch.Bell // rung to skip the pause
}

// Subscribe prepares a Feed. It returns errors in the settings and in the files that they name.
func (s *Service) Subscribe(x XDS) (*Feed, error) {
	if err := x.Validate(); err != nil {
		return nil, err
	}
	if x.TLS != nil {
		if _, err := x.TLS.config(); err != nil {
			return nil, err
		}
	}
	f := &Feed{XDS: x, service: s, again: watch.NewBell()}
	f.node = &core.Node{Id: cmp.Or(x.Node, DefaultNode), Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{}}, UserAgentName: "weir"}
	for key, value := range x.NodeMetadata {
		f.node.Metadata.Fields[key] = structpb.NewStringValue(value)
	}
	f.Retry, f.MaxRetry = cmp.Or(x.Retry, time.Second/2), cmp.Or(x.MaxRetry, 30*time.Second)
	s.note(func(n *Source) { n.Name, n.Lost = x.Server, "not connected yet" })
	return f, nil
}

// Look makes Follow try to connect now if it isn't connected.
func (f *Feed) Look() { f.again.Ring() }

const maxTold = 100 // how many reasons are remembered

// localPort matches the local port in a connection error, which differs for each attempt.
var localPort = regexp.MustCompile(`:\d+->`)

// Follow applies what the server sends until ctx is done. While the server can't be reached, the last
// valid configuration stays in force.
func (f *Feed) Follow(ctx context.Context) error {
	log := f.service.opts.Logger
	pause, told := f.Retry, map[string]bool{}
	for {
		answered, err := f.stream(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if answered {
			pause, told = f.Retry, map[string]bool{}
		}
		why, none := reason(err), false
		same := localPort.ReplaceAllString(why, "->")
		f.service.note(func(n *Source) { n.Connected, n.Lost, none = false, why, n.Since.IsZero() })
		switch {
		case told[same]: // this reason has been logged
		case none:
			log.Warn("the xDS server can't be reached: there is no configuration yet", "server", f.Server, "error", why)
		default:
			log.Warn("the xDS server is lost: the configuration in force stays", "server", f.Server, "error", why)
		}
		if len(told) == maxTold { // forget them, because a server could make up new reasons all the time
			clear(told)
		}
		told[same] = true
		select {
		case <-ctx.Done():
			return nil
		case <-f.again:
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		}
		pause = min(2*pause, f.MaxRetry)
	}
}

// stream connects to the server and applies the configurations that it sends, until the stream ends. answered reports
// whether the server has sent anything.
//
// The request for configurations doesn't include a version. Servers number versions from 1 when they start, so another
// configuration may have the same version as the one in force here, and the server wouldn't send it.
func (f *Feed) stream(ctx context.Context) (answered bool, err error) {
	conn, err := f.dial()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.New(f.Headers)))
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	f.service.note(func(n *Source) { n.Connected, n.Lost = true, "" })
	version, rejected, pace, last := "", "", leastPace, time.Time{}
	for ask := (&discovery.DiscoveryRequest{Node: f.node, TypeUrl: configType}); ; {
		if err := stream.Send(ask); err != nil && !errors.Is(err, io.EOF) { // after io.EOF, Recv returns the reason
			return answered, err
		}
		got, err := stream.Recv()
		if err != nil {
			return answered, f.ended(err)
		}
		answered = true
		if got.GetVersionInfo() != rejected {
			pace = leastPace
		}
		select {
		case <-ctx.Done():
			return answered, ctx.Err()
		case <-time.After(time.Until(last.Add(pace))):
		}
		last = time.Now()
		ask = &discovery.DiscoveryRequest{Node: f.node, TypeUrl: configType, ResponseNonce: got.GetNonce()}
		if err := f.apply(got); err != nil {
			rejected, pace = got.GetVersionInfo(), min(2*pace, mostPace)
			ask.ErrorDetail = &rpc.Status{Code: int32(codes.InvalidArgument), Message: reason(err)}
		} else {
			pace, version = leastPace, got.GetVersionInfo()
		}
		ask.VersionInfo = version
	}
}

func (f *Feed) dial() (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if f.TLS != nil {
		c, err := f.TLS.config()
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(c)
	}
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeAfter, Interval: probeEvery, Count: probes}}
	return grpc.NewClient("dns:///"+strings.TrimPrefix(f.Server, "dns:///"),
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) }),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTime}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxConfig)),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithInitialWindowSize(configWindow),
		grpc.WithInitialConnWindowSize(configWindow),
		grpc.WithDisableServiceConfig(),
		grpc.WithUserAgent("weir"),
	)
}

func (f *Feed) apply(got *discovery.DiscoveryResponse) (err error) {
	var config *Config
	var warnings rulefile.Problems
	switch n := len(got.GetResources()); {
	case got.GetTypeUrl() != configType:
		err = fmt.Errorf("the answer is of the type %q: %s was asked for", clip(got.GetTypeUrl()), configType)
	case n > maxResources:
		err = fmt.Errorf("there are %d resources: a configuration has at most %d", n, maxResources)
	default:
		config, warnings, err = parseResources(got.GetResources(), f.service.opts.Modes)
		f.service.warn(warnings)
	}
	if err != nil {
		f.service.reject(err)
		return err
	}
	version := label(got.GetVersionInfo())
	f.service.accept(config, f.Server, version, "server", f.Server, "version", version, "resources", len(got.GetResources()))
	return nil
}

// ended returns an error that says why a stream ended. If a configuration was too large, the server can't be told.
func (f *Feed) ended(err error) error {
	if status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max") {
		err = fmt.Errorf("the configuration has more than %d bytes", maxConfig)
		f.service.reject(err)
	}
	return err
}

// reason returns the text of an error without gRPC's prefix, for the server and the operator.
func reason(err error) string {
	text := status.Convert(err).Message()
	if len(text) > maxReason {
		text = text[:maxReason] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
