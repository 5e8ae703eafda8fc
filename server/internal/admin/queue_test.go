package admin

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/guard"
	"github.com/weirhq/weir/server/internal/observe/top"
)

func newAPI(t *testing.T) (*API, http.Handler) {
	t.Helper()
	doc, err := inforce.Parse("rules", []byte("rules: [{id: quota, limit: 5/minute}]\n"), 1)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{})
	a := &API{Rules: inforce.FromFile("rules.yaml", doc, limiter, log), Limiter: limiter, Guard: guard.New(guard.Options{}), Audit: log}
	mux := http.NewServeMux()
	a.Register(mux)
	return a, mux
}

// ask sends a request with a context, and returns the status and the body.
func ask(ctx context.Context, h http.Handler, method, path string) (int, string) {
	w := httptest.NewRecorder()
	answerTo(ctx, w, h, method, path)
	return w.Code, w.Body.String()
}

func answerTo(ctx context.Context, w http.ResponseWriter, h http.Handler, method, path string) {
	body := "rules: [{id: quota, limit: 9/minute}]\n"
	if path == "/v1/explain" {
		body = `{"key": "k"}`
	}
	r := httptest.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
	r.Header.Set("If-Match", "*")
	if method == http.MethodGet {
		r.Header.Set("Accept", "application/json")
	}
	h.ServeHTTP(w, r)
}

// looking lists the requests that a read-only token may send and that cost a parse, a compilation or a comparison.
var looking = []struct{ method, path string }{
	{"POST", "/v1/rules/validate"}, {"POST", "/rules/validate"}, {"PUT", "/v1/rules?dry_run=true"}, {"GET", "/v1/rules"},
}

// An explanation waits for its turn but needs no seat, so clients that send documents slowly don't keep it out.
func TestAnExplanationNeedsNoSeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, h := newAPI(t)
		for range lookSeats {
			a.looks.seats <- struct{}{}
		}
		a.looks.turn <- struct{}{} // another request has the turn
		status := 0
		var wg sync.WaitGroup
		wg.Go(func() { status, _ = ask(t.Context(), h, "POST", "/v1/explain") })
		synctest.Wait()
		if status != 0 {
			t.Errorf("answered %d before its turn", status)
		}
		<-a.looks.turn
		wg.Wait()
		if status != http.StatusOK {
			t.Errorf("answered %d, with all seats taken", status)
		}
	})
}

// Only one request is processed at a time, and others wait. A request without a seat gets 503, and a waiting request
// whose client leaves gives up its seat.
func TestOneLookAtATime(t *testing.T) {
	for _, c := range looking {
		synctest.Test(t, func(t *testing.T) {
			a, h := newAPI(t)
			a.looks.seats <- struct{}{}
			a.looks.turn <- struct{}{} // another request has the turn
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			var wg sync.WaitGroup
			var mu sync.Mutex // guards statuses
			statuses := map[int]int{}
			wait := func(ctx context.Context) {
				wg.Go(func() {
					status, _ := ask(ctx, h, c.method, c.path)
					mu.Lock()
					defer mu.Unlock()
					statuses[status]++
				})
			}
			for range lookSeats - 2 {
				wait(t.Context())
			}
			wait(ctx)
			synctest.Wait()
			if len(statuses) != 0 {
				t.Fatalf("%s %s: answered before its turn: %v", c.method, c.path, statuses)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://localhost/v1/rules/validate", nil))
			if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "BUSY") {
				t.Errorf("%s %s: the ninth gets %d %v %s", c.method, c.path, w.Code, w.Header(), w.Body)
			}
			leave() // one of the waiting clients
			synctest.Wait()
			if len(a.looks.seats) != lookSeats-1 || statuses[http.StatusServiceUnavailable] != 1 {
				t.Errorf("%s %s: a client that has left has still a seat: %v", c.method, c.path, statuses)
			}
			<-a.looks.turn
			<-a.looks.seats
			wg.Wait()
			if statuses[http.StatusOK] != lookSeats-2 || len(a.looks.seats) != 0 || len(a.looks.turn) != 0 {
				t.Errorf("%s %s: %v, and %d seats taken", c.method, c.path, statuses, len(a.looks.seats))
			}
		})
	}
}

// Clients that send their bodies slowly keep no other client out. Those with large documents keep out only other large
// documents.
func TestHalfSentBodiesHaveNoSeat(t *testing.T) {
	for _, c := range looking {
		if c.method == http.MethodGet {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			a, h := newAPI(t)
			var wg sync.WaitGroup
			ctx, leave := context.WithCancel(t.Context())
			send := func(body io.Reader) *httptest.ResponseRecorder {
				w := httptest.NewRecorder()
				r := httptest.NewRequestWithContext(ctx, c.method, "http://localhost"+c.path, body)
				r.Header.Set("If-Match", "*")
				h.ServeHTTP(w, r)
				return w
			}
			whole := strings.Repeat("# rules\n", small/8) + "rules: [{id: quota, limit: 9/minute}]\n"
			var halves []*io.PipeWriter
			half := func(sent string) {
				r, w := io.Pipe()
				halves = append(halves, w)
				wg.Go(func() { send(io.MultiReader(strings.NewReader(sent), r)) })
			}
			for range 2 * lookSeats {
				half("rules: [{id")
			}
			synctest.Wait()
			if w := send(strings.NewReader(whole)); w.Code != http.StatusOK {
				t.Errorf("%s %s: %d %s, while others send slowly", c.method, c.path, w.Code, w.Body)
			}
			for range largeSeats {
				half(whole)
			}
			synctest.Wait()
			if status, body := ask(ctx, h, c.method, c.path); status != http.StatusOK {
				t.Errorf("%s %s: %d %s, while others send large documents slowly", c.method, c.path, status, body)
			}
			if w := send(strings.NewReader(whole)); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
				t.Errorf("%s %s: %d %s for one more large document", c.method, c.path, w.Code, w.Body)
			}
			for _, w := range halves {
				w.CloseWithError(io.ErrUnexpectedEOF)
			}
			wg.Wait()
			leave()
			if len(a.looks.seats)+len(a.looks.large)+len(a.looks.turn) != 0 {
				t.Errorf("%s %s: %d seats are still taken, and %d for large documents", c.method, c.path, len(a.looks.seats), len(a.looks.large))
			}
		})
	}
}

// stuck is a client that doesn't read its response.
type stuck struct {
	*httptest.ResponseRecorder
	written chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	s.written <- struct{}{}
	return len(p), nil
}

// A client that reads its response slowly doesn't make others wait.
func TestSlowReadersHaveNoTurn(t *testing.T) {
	for _, c := range looking {
		synctest.Test(t, func(t *testing.T) {
			a, h := newAPI(t)
			w := &stuck{httptest.NewRecorder(), make(chan struct{})}
			var wg sync.WaitGroup
			wg.Go(func() { answerTo(t.Context(), w, h, c.method, c.path) })
			synctest.Wait()
			if len(a.looks.turn) != 0 {
				t.Errorf("%s %s has its turn while it waits for its client", c.method, c.path)
			}
			<-w.written
			wg.Wait()
		})
	}
}

// Readers don't delay writes, however many there are.
func TestWritesDontWaitForReaders(t *testing.T) {
	a, h := newAPI(t)
	for range lookSeats {
		a.looks.seats <- struct{}{}
	}
	a.looks.turn <- struct{}{}
	if status, body := ask(t.Context(), h, "PUT", "/v1/rules"); status != http.StatusConflict || !strings.Contains(body, jsonerror.RulesInFile) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := ask(t.Context(), h, "PUT", "/v1/rules?dry_run=true"); status != http.StatusServiceUnavailable || !strings.Contains(body, jsonerror.Busy) {
		t.Errorf("a dry run: %d %s", status, body)
	}
}

// Nothing is compared for a client that has left.
func TestNothingIsComparedForClientsThatLeft(t *testing.T) {
	_, h := newAPI(t)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	for _, c := range looking {
		if status, body := ask(ctx, h, c.method, c.path); status == http.StatusOK {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, body)
		}
	}
	out := &Changed{}
	if f := new(change).judge(ctx, []byte("rules: [{id: quota, limit: 100/minute}]"), []byte("rules: [{id: quota, limit: 5/minute}]"), nil, out); f == nil || len(out.Warnings) > 0 {
		t.Errorf("%v, %v", f, out.Warnings)
	}
}

// TestAnswersAboutTheHourHaveSeats checks that the number of concurrent responses about the last hour is limited,
// because they are large and wait for other nodes.
func TestAnswersAboutTheHourHaveSeats(t *testing.T) {
	a, h := newAPI(t)
	for range hourSeats {
		a.hours.seats <- struct{}{}
	}
	for path, body := range map[string]string{"/v1/rules/usage": "", "/v1/rules/usage/quota?k=1000": "", "/v1/clients": `{"key": "k"}`} {
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(body)))
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "BUSY") {
			t.Errorf("%s: %d %v %s", path, w.Code, w.Header(), w.Body)
		}
	}
	if len(a.looks.seats) != 0 || len(a.hours.seats) != hourSeats {
		t.Error("a request took a seat")
	}
}

// A response about the last hour keeps its seat while its client reads it, because it takes up memory until then.
func TestAnswersAboutTheHourKeepTheirSeats(t *testing.T) {
	for method, path := range map[string]string{"GET": "/v1/rules/usage", "POST": "/v1/clients"} {
		synctest.Test(t, func(t *testing.T) {
			a, h := newAPI(t)
			a.Top = top.NewCluster(top.New(top.Options{}), "node", nil, nil)
			w := &stuck{httptest.NewRecorder(), make(chan struct{})}
			var wg sync.WaitGroup
			wg.Go(func() {
				h.ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(`{"key": "k"}`)))
			})
			synctest.Wait()
			if len(a.hours.seats) != 1 {
				t.Errorf("%s %s: %d seats are taken while the client reads", method, path, len(a.hours.seats))
			}
			<-w.written
			wg.Wait()
			if len(a.hours.seats) != 0 {
				t.Errorf("%s %s has kept its seat", method, path)
			}
		})
	}
}
