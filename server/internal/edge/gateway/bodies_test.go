package gateway

import (
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"testing"
)

// pattern is an endless body whose period isn't a power of two, so that shifted or repeated buffers show.
type pattern struct{ at int }

var block = func() []byte {
	b := make([]byte, 65_521)
	for i := range b {
		b[i] = byte(i * i >> 3)
	}
	return b
}()

func (p *pattern) Read(b []byte) (int, error) {
	n := copy(b, block[p.at:])
	p.at = (p.at + n) % len(block)
	return n, nil
}

const big = 20 << 20

// parcel is the checksum and length of a body.
type parcel struct {
	sum uint32
	n   int64
}

func receive(t *testing.T, r io.Reader) parcel {
	t.Helper()
	h := crc32.NewIEEE()
	n, err := io.Copy(h, r)
	if err != nil {
		t.Error(err)
	}
	return parcel{h.Sum32(), n}
}

// startWarehouse starts an upstream that sends big bodies and reports on those that it receives.
func startWarehouse(t *testing.T) (up *upstream, received <-chan parcel) {
	t.Helper()
	c := make(chan parcel, 1)
	return startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			_, _ = io.CopyN(w, &pattern{}, big)
			return
		}
		c <- receive(t, r.Body)
	}), c
}

// carry uploads a big body and downloads another, and checks that both are complete.
func carry(t *testing.T, d *door, received <-chan parcel) {
	t.Helper()
	want := receive(t, io.LimitReader(&pattern{}, big))
	if a := d.do(t, d.request(t, "PUT", "/", io.LimitReader(&pattern{}, big))); a.StatusCode != 200 {
		t.Errorf("%s %s", a.Status, a.body)
	}
	if got := await(t, received, "the upload"); got != want {
		t.Errorf("uploaded %v, want %v", got, want)
	}
	res, err := d.client.Do(d.request(t, "GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got := receive(t, res.Body); got != want {
		t.Errorf("downloaded %v, want %v", got, want)
	}
}

// Bodies of 20 MB arrive complete in both directions.
func TestLargeBodies(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		up, received := startWarehouse(t)
		carry(t, start(t, setup{upstream: up.URL, tls: h2}), received)
	}
}

// A request body is forwarded completely even if the upstream begins its response before reading all of it.
func TestEchoIsWhole(t *testing.T) {
	up := echo(t)
	want := receive(t, io.LimitReader(&pattern{}, big))
	for _, h2 := range []bool{false, true} {
		d := start(t, setup{upstream: up.URL, tls: h2})
		for _, length := range []int64{big, -1} {
			req := d.request(t, "POST", "/", io.LimitReader(&pattern{}, big))
			req.ContentLength = length
			res, err := d.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if got := receive(t, res.Body); got != want {
				t.Errorf("HTTP/2 %t, length %d: %v came back of %v", h2, length, got, want)
			}
			res.Body.Close()
		}
	}
}

// Short request bodies, with responses that begin as soon as a body has arrived, complete without an error or a lost
// connection. The goroutines that copy the two directions end at about the same time.
func TestManyShortBodies(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		for _, c := range body {
			_, _ = w.Write([]byte{c})
			http.NewResponseController(w).Flush()
		}
	})
	d := start(t, setup{upstream: up.URL})
	for range 500 {
		if a := d.do(t, d.request(t, "POST", "/", strings.NewReader("hello"))); a.body != "hello" || a.Close {
			t.Fatalf("%s %q, connection kept: %t", a.Status, a.body, !a.Close)
		}
	}
}
