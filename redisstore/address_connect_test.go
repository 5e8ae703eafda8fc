package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/redistest"
)

// soon returns a context for what should take a few seconds, even on a busy machine.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// dialURL connects. On a busy machine, that may take several attempts, since each is short.
func dialURL(t *testing.T, url string) rueidis.Client {
	t.Helper()
	a, err := parseAddress(url)
	if err != nil {
		t.Fatal(err)
	}
	var client rueidis.Client
	err = redistest.Until(soon(t), func(context.Context) (err error) {
		client, err = rueidis.NewClient(a.option)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", a.shown, err)
	}
	t.Cleanup(client.Close)
	return client
}

// refusedURL waits for the error that a URL leads to, and ignores errors that a busy machine causes.
func refusedURL(t *testing.T, url, want string) {
	t.Helper()
	a, err := parseAddress(url)
	if err != nil {
		t.Fatal(err)
	}
	err = redistest.Until(soon(t), func(context.Context) error {
		client, err := rueidis.NewClient(a.option)
		if err == nil {
			client.Close()
			return fmt.Errorf("%s: connected", a.shown)
		}
		if !strings.Contains(err.Error(), want) {
			return err
		}
		if leaks(err.Error()) {
			t.Errorf("%s: the error tells the password: %v", a.shown, err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("want %q, got: %v", want, err)
	}
}

// set writes until it succeeds. Unlike a charge, a write may happen twice.
func set(t *testing.T, client rueidis.Client, key, value string) {
	t.Helper()
	err := redistest.Until(soon(t), func(ctx context.Context) error {
		return client.Do(ctx, client.B().Set().Key(key).Value(value).Build()).Error()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func wantReply(t *testing.T, server *redistest.Server, want string, args ...string) {
	t.Helper()
	got, err := server.Do(soon(t), args...)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(got); !strings.Contains(text, want) {
		t.Errorf("%v: want %q, got %q", args, want, text)
	}
}

func TestConnect(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	for url, db := range map[string]string{
		"redis://" + server.Addr:            "db0:",
		"redis://" + server.Addr + "/3":     "db3:",
		"unix://" + server.Socket:           "db0:",
		"unix://" + server.Socket + "?db=4": "db4:",
	} {
		client := dialURL(t, url)
		if mode := client.Mode(); mode != rueidis.ClientModeStandalone {
			t.Errorf("%s: a client for %s", url, mode)
		}
		set(t, client, "key", url)
		wantReply(t, server, db, "INFO", "keyspace")
		wantReply(t, server, "OK", "FLUSHALL")
	}
}

func TestConnectWithPassword(t *testing.T) {
	server := redistest.New(t, redistest.Options{Password: "hunter2@/?#%"})
	client := dialURL(t, "redis://:hunter2%40%2F%3F%23%25@"+server.Addr)
	set(t, client, "key", "1")
	wantReply(t, server, "1", "GET", "key")
	refusedURL(t, "redis://:hunter2@"+server.Addr, "WRONGPASS")
	refusedURL(t, "redis://"+server.Addr, "NOAUTH")
}

func TestConnectAsUser(t *testing.T) {
	// Allow only what the test does, besides what Redis grants to everyone. If a connection needs anything else, it fails.
	server := redistest.New(t, redistest.Options{ACL: []string{
		"user default off",
		"user weir on >hunter2 ~* resetchannels -@all +set +ping",
		"user selector on >hunter2 ~* resetchannels -@all +set +select",
	}})
	set(t, dialURL(t, "redis://weir:hunter2@"+server.Addr), "key", "1")
	wantReply(t, server, "1", "GET", "key")
	wantReply(t, server, "user=weir", "CLIENT", "LIST")
	set(t, dialURL(t, "redis://selector:hunter2@"+server.Addr+"/7"), "key", "2")
	wantReply(t, server, "db7:", "INFO", "keyspace")

	refusedURL(t, "redis://weir:hunter3@"+server.Addr, "WRONGPASS")
	refusedURL(t, "redis://:hunter2@"+server.Addr, "WRONGPASS")
	refusedURL(t, "redis://weir:hunter2@"+server.Addr+"/7", "NOPERM")
}

func TestConnectByTLS(t *testing.T) {
	server := redistest.New(t, redistest.Options{TLS: true, Password: "hunter2"})
	ca, pair := "?ca="+server.Certs.CA, "&cert="+server.Certs.ClientCert+"&key="+server.Certs.ClientKey
	secret := "rediss://:hunter2@" + server.TLSAddr
	set(t, dialURL(t, secret+"/1"+ca+pair), "key", "1")
	wantReply(t, server, "db1:", "INFO", "keyspace")
	set(t, dialURL(t, secret+"/2"+ca+pair+"&server_name=localhost"), "key", "2")
	wantReply(t, server, "db2:", "INFO", "keyspace")

	refusedURL(t, secret+ca, "certificate required")
	refusedURL(t, secret+"?"+pair[1:], "certificate signed by unknown authority")
	refusedURL(t, secret+ca+pair+"&server_name=example.com", "not example.com")

	set(t, dialURL(t, secret+"/3"+ca+pair+"&server_name=example.com&verify_name=false"), "key", "3")
	wantReply(t, server, "db3:", "INFO", "keyspace")
	refusedURL(t, secret+"?"+pair[1:]+"&verify_name=false", "certificate signed by unknown authority")
}

func TestConnectToSentinel(t *testing.T) {
	t.Parallel()
	group := redistest.NewSentinel(t, redistest.Options{Password: "hunter2"})
	for _, s := range group.Sentinels {
		wantReply(t, s, "OK", "ACL", "SETUSER", "watcher", "on", ">sesame", "~*", "&*", "+@all")
	}
	url := "redis-sentinel://:hunter2@" + strings.Join(group.Addrs(), ",") + "/" + redistest.MasterName
	refusedURL(t, url+"?sentinel_user=watcher&sentinel_password=hunter2", "WRONGPASS")

	client := dialURL(t, url+"?sentinel_user=watcher&sentinel_password=sesame")
	if mode := client.Mode(); mode != rueidis.ClientModeSentinel {
		t.Errorf("a client for %s", mode)
	}
	set(t, client, "key", "before")
	old, err := group.Primary(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	wantReply(t, old, "before", "GET", "key")
	asked := false
	for _, s := range group.Sentinels {
		clients, err := s.Do(soon(t), "CLIENT", "LIST")
		if err != nil {
			t.Fatal(err)
		}
		asked = asked || strings.Contains(fmt.Sprint(clients), "user=watcher")
	}
	if !asked {
		t.Error("no Sentinel is asked by sentinel_user")
	}

	old.Kill()
	set(t, client, "key", "after")
	err = redistest.Until(soon(t), func(ctx context.Context) error {
		primary, err := group.Primary(ctx)
		if err != nil {
			return err
		}
		if primary == old {
			return fmt.Errorf("%s is still the primary", old.Addr)
		}
		got, err := primary.Do(ctx, "GET", "key")
		if err == nil && got != "after" {
			err = fmt.Errorf("the new primary has %v", got)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestConnectToCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t, redistest.Options{Password: "hunter2"})
	refusedURL(t, "redis-cluster://:hunter3@"+strings.Join(cluster.Addrs()[:2], ","), "WRONGPASS")

	client := dialURL(t, "redis-cluster://:hunter2@"+strings.Join(cluster.Addrs()[:2], ","))
	if mode := client.Mode(); mode != rueidis.ClientModeCluster {
		t.Errorf("a client for %s", mode)
	}
	owners := map[string]bool{}
	for i := range 20 {
		key := fmt.Sprintf("key%d", i)
		set(t, client, key, key)
		owner, err := cluster.Owner(soon(t), key)
		if err != nil {
			t.Fatal(err)
		}
		wantReply(t, owner, key, "GET", key)
		owners[owner.Addr] = true
	}
	if len(owners) != 3 {
		t.Errorf("keys on %d of 3 primaries", len(owners))
	}
}

// TestClusterThatNamesNoHosts checks a Cluster whose servers don't say their hosts. The store uses the host that it asked, and
// tells servers apart by their ports.
func TestClusterThatNamesNoHosts(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{Config: []string{"cluster-preferred-endpoint-type unknown-endpoint"}})
	s := open(t, Options{URL: clusterURL(c)})
	answers(t, s)
	if n := len(s.Health().Shards); n != 3 {
		t.Errorf("%d shards: %+v", n, s.Health().Shards)
	}
}
