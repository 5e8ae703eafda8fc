// Command echo is an Echo server behind a load balancer. It limits failed logins by the client's
// real address.
package main

import (
	"log"
	"net/http"
	"net/netip"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

func newHandler() (http.Handler, error) {
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{
		ID: "login", Match: weir.Match{Endpoint: "POST /login"}, By: []string{"ip"},
		Statuses: []int{http.StatusUnauthorized}, Limits: []weir.Limit{weir.PerHour(3)},
	}}})
	if err != nil {
		return nil, err
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	limit := httplimit.New(limiter, httplimit.Options{
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, // proxies whose X-Forwarded-For is trusted
	})

	e := echo.New()
	e.POST("/login", func(c echo.Context) error {
		if c.FormValue("password") != "correct horse battery staple" {
			return echo.ErrUnauthorized
		}
		return c.String(http.StatusOK, "welcome")
	})
	// Wrap Echo from outside, instead of with echo.WrapMiddleware. Inside Echo, the errors that
	// handlers return have no status yet, so failed logins would look successful.
	return limit.Wrap(e), nil
}

func main() {
	handler, err := newHandler()
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "localhost:8080", Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}
